// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/gpu_kernels.h"

#include <cstdio>
#include <cstdlib>

#include "tests/gpu/kernels_ptx.h"

namespace gpulease::gpu_test {
namespace {

constexpr unsigned kBlocks = 1024;
constexpr unsigned kThreads = 256;

}  // namespace

void GpuKernels::Check(const char* call, cuda::CUresult result) const {
  if (result == cuda::CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s\n", cuda_->MakeError(call, result).message.c_str());
  std::exit(3);
}

GpuKernels::GpuKernels(int ordinal) {
  auto cuda = driver::CudaDriver::Load({});
  if (!cuda.ok()) {
    std::fprintf(stderr, "%s\n", cuda.error().message.c_str());
    std::exit(3);
  }
  cuda_ = *cuda;
  Check("cuDeviceGet", cuda_->cuDeviceGet(&device_, ordinal));
  Check("cuDevicePrimaryCtxRetain", cuda_->cuDevicePrimaryCtxRetain(&context_, device_));
  Check("cuCtxSetCurrent", cuda_->cuCtxSetCurrent(context_));
  Check("cuModuleLoadData", cuda_->cuModuleLoadData(&module_, kKernels));
}

GpuKernels::~GpuKernels() {
  cuda_->cuModuleUnload(module_);
  cuda_->cuDevicePrimaryCtxRelease(device_);
}

cuda::CUresult GpuKernels::Launch(const char* kernel, void** parameters) {
  cuda::CUfunction function = nullptr;
  Check("cuModuleGetFunction", cuda_->cuModuleGetFunction(&function, module_, kernel));
  return cuda_->cuLaunchKernel(function, kBlocks, 1, 1, kThreads, 1, 1, 0, nullptr, parameters,
                               nullptr);
}

void GpuKernels::FillLater(std::uint64_t words, std::uint64_t count, std::uint32_t seed) {
  void* parameters[] = {&words, &count, &seed};
  Check("Fill", Launch("Fill", parameters));
}

void GpuKernels::Fill(std::uint64_t words, std::uint64_t count, std::uint32_t seed) {
  FillLater(words, count, seed);
  Check("Fill", cuda_->cuCtxSynchronize());
}

std::uint64_t GpuKernels::Counted(const char* kernel, void** parameters,
                                  std::uint64_t* counter_parameter) {
  cuda::CUdeviceptr counter = 0;
  Check("cuMemAlloc", cuda_->cuMemAlloc(&counter, sizeof(std::uint64_t)));
  Check("cuMemsetD8", cuda_->cuMemsetD8(counter, 0, sizeof(std::uint64_t)));
  *counter_parameter = counter;
  Check(kernel, Launch(kernel, parameters));
  std::uint64_t wrong = 0;
  Check(kernel, cuda_->cuMemcpyDtoH(&wrong, counter, sizeof wrong));
  Check("cuMemFree", cuda_->cuMemFree(counter));
  return wrong;
}

std::uint64_t GpuKernels::Wrong(std::uint64_t words, std::uint64_t count, std::uint32_t seed) {
  std::uint64_t counter = 0;
  void* parameters[] = {&words, &count, &seed, &counter};
  return Counted("Check", parameters, &counter);
}

std::uint64_t GpuKernels::NotZero(std::uint64_t words, std::uint64_t count) {
  std::uint64_t counter = 0;
  void* parameters[] = {&words, &count, &counter};
  return Counted("CheckZero", parameters, &counter);
}

void GpuKernels::Scribble(std::uint64_t words, std::uint64_t count, std::uint32_t value,
                          std::uint64_t nanoseconds) {
  void* parameters[] = {&words, &count, &value, &nanoseconds};
  Check("Scribble", Launch("Scribble", parameters));
}

std::string GpuKernels::TryFill(std::uint64_t words, std::uint64_t count, std::uint32_t seed) {
  void* parameters[] = {&words, &count, &seed};
  cuda::CUresult result = Launch("Fill", parameters);
  if (result == cuda::CUDA_SUCCESS) result = cuda_->cuCtxSynchronize();
  const char* name = "";
  cuda_->cuGetErrorName(result, &name);
  return name;
}

}  // namespace gpulease::gpu_test
