// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/memory/device_range.h"

#include <utility>

namespace gpulease {

Result<DeviceRange> DeviceRange::Map(std::shared_ptr<const CudaProcess> process,
                                     const Options& options) {
  const driver::CudaDriver& cuda = process->cuda();
  Bytes total = 0;
  for (const DeviceChunk& chunk : options.chunks) total += chunk.size;
  DeviceRange range(std::move(process));
  auto result = cuda.cuMemAddressReserve(&range.address_, total, options.alignment, 0, 0);
  if (result != cuda::CUDA_SUCCESS) {
    range.address_ = 0;
    return cuda.MakeError(
        "cuMemAddressReserve of " + FormatBytes(total) + " for " + options.subject, result);
  }
  range.reserved_ = total;
  range.sizes_.reserve(options.chunks.size());
  range.handles_.reserve(options.chunks.size());
  for (std::size_t i = 0; i < options.chunks.size(); ++i) {
    GPULEASE_RETURN_IF_ERROR(range.MapChunk(options, i));
  }
  std::vector<cuda::CUmemAccessDesc> access;
  for (int ordinal : options.ordinals) {
    cuda::CUmemAccessDesc one{};
    one.location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
    one.location.id = ordinal;
    one.flags = options.read_only ? cuda::CU_MEM_ACCESS_FLAGS_PROT_READ
                                  : cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    access.push_back(one);
  }
  result = cuda.cuMemSetAccess(range.address_, total, access.data(), access.size());
  if (result != cuda::CUDA_SUCCESS) {
    return cuda.MakeError(
        std::string("cuMemSetAccess ") + (options.read_only ? "for reading" : "for writing") +
            " of " + options.subject +
            (options.ordinals.size() > 1 ? " (the other GPUs need peer access to it)" : ""),
        result);
  }
  return range;
}

Status DeviceRange::MapChunk(const Options& options, std::size_t index) {
  const driver::CudaDriver& cuda = process_->cuda();
  const DeviceChunk& chunk = options.chunks[index];
  auto name = [&](const char* step) {
    return std::string(step) + " of chunk " + std::to_string(index) + " (" +
           FormatBytes(chunk.size) + ") of " + options.subject;
  };
  cuda::CUmemGenericAllocationHandle handle = 0;
  auto result = cuda.cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(chunk.descriptor)),
      cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != cuda::CUDA_SUCCESS) {
    return cuda.MakeError(name("cuMemImportFromShareableHandle"), result);
  }
  result = cuda.cuMemMap(address_ + mapped_, chunk.size, 0, handle, 0);
  if (result != cuda::CUDA_SUCCESS) {
    cuda.cuMemRelease(handle);
    return cuda.MakeError(name("cuMemMap"), result);
  }
  // The mapping would keep the memory without it; to release it here would make the caller wait.
  handles_.push_back(handle);
  sizes_.push_back(chunk.size);
  mapped_ += chunk.size;
  return {};
}

DeviceRange::DeviceRange(DeviceRange&& other) noexcept
    : process_(std::move(other.process_)),
      address_(std::exchange(other.address_, 0)),
      reserved_(other.reserved_),
      mapped_(other.mapped_),
      sizes_(std::move(other.sizes_)),
      handles_(std::move(other.handles_)) {}

DeviceRange::~DeviceRange() {
  if (address_ == 0) return;
  const driver::CudaDriver& cuda = process_->cuda();
  // One call for the range; a driver that wants each mapping by itself gets it so. What fails here
  // is a faulted device, whose memory goes with the process.
  if (mapped_ > 0 && cuda.cuMemUnmap(address_, mapped_) != cuda::CUDA_SUCCESS) {
    cuda::CUdeviceptr at = address_;
    for (Bytes size : sizes_) {
      cuda.cuMemUnmap(at, size);
      at += size;
    }
  }
  cuda.cuMemAddressFree(address_, reserved_);
  for (const cuda::CUmemGenericAllocationHandle handle : handles_) cuda.cuMemRelease(handle);
}

}  // namespace gpulease
