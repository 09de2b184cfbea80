// SPDX-License-Identifier: Apache-2.0
#include "client/playground/gpu.h"

#include <stdexcept>

#include "driver/gpu_probe.h"

namespace gpulease::playground {

std::shared_ptr<const driver::CudaDriver> LoadCuda(const std::string& simulated_directory) {
  auto cuda = driver::CudaDriver::Load({.simulated_directory = simulated_directory});
  if (!cuda.ok()) throw std::runtime_error(cuda.error().message);
  return *cuda;
}

Gpu::Gpu(const std::string& simulated_directory, const std::string& uuid)
    : cuda_(LoadCuda(simulated_directory)), uuid_(uuid), ordinal_(OrdinalOf(uuid)) {
  if (ordinal_ < 0) throw std::runtime_error(uuid + " is not visible to this process");
  Check(cuda_->cuDevicePrimaryCtxRetain(&context_, ordinal_), "cuDevicePrimaryCtxRetain");
  try {
    MakeCurrent();
    Check(cuda_->cuStreamCreate(&stream_, cuda::kStreamNonBlocking), "cuStreamCreate");
  } catch (...) {
    cuda_->cuDevicePrimaryCtxRelease(ordinal_);
    throw;
  }
}

Gpu::~Gpu() {
  cuda_->cuStreamDestroy(stream_);
  cuda_->cuDevicePrimaryCtxRelease(ordinal_);
}

int Gpu::OrdinalOf(const std::string& uuid) const {
  int count = 0;
  Check(cuda_->cuDeviceGetCount(&count), "cuDeviceGetCount");
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cuda::CUdevice device = 0;
    cuda::CUuuid bytes{};
    Check(cuda_->cuDeviceGet(&device, ordinal), "cuDeviceGet");
    Check(cuda_->cuDeviceGetUuid(&bytes, device), "cuDeviceGetUuid");
    if (driver::FormatUuid(bytes) == uuid) return ordinal;
  }
  return -1;
}

bool Gpu::Reaches(const std::string& uuid) const {
  const int other = OrdinalOf(uuid);
  if (other == ordinal_ || other < 0) return other == ordinal_;
  int can = 0;
  Check(cuda_->cuDeviceCanAccessPeer(&can, ordinal_, other), "cuDeviceCanAccessPeer");
  return can != 0;
}

void Gpu::MakeCurrent() const { Check(cuda_->cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }

void Gpu::Synchronize() const { Check(cuda_->cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

void Gpu::Check(cuda::CUresult result, const char* what) const {
  if (result != cuda::CUDA_SUCCESS) {
    throw std::runtime_error(cuda_->MakeError(std::string(what) + " on " + uuid_, result).message);
  }
}

}  // namespace gpulease::playground
