// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/memory/device_range.h"

#include <algorithm>
#include <utility>

namespace gpulease {

Result<DeviceRange> DeviceRange::Map(std::shared_ptr<const CudaProcess> process,
                                     const Options& options) {
  const driver::CudaDriver& cuda = process->cuda();
  Bytes total = 0;
  for (const DeviceChunk& chunk : options.chunks) total += chunk.size;
  DeviceRange range(std::move(process));
  const Bytes reserve = std::max(total, options.reserve);
  const auto result = cuda.cuMemAddressReserve(&range.address_, reserve, options.alignment, 0, 0);
  if (result != cuda::CUDA_SUCCESS) {
    range.address_ = 0;
    return cuda.MakeError(
        "cuMemAddressReserve of " + FormatBytes(reserve) + " for " + options.subject, result);
  }
  range.reserved_ = reserve;
  range.sizes_.reserve(options.chunks.size());
  range.handles_.reserve(options.chunks.size());
  for (int ordinal : options.ordinals) {
    cuda::CUmemAccessDesc one{};
    one.location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
    one.location.id = ordinal;
    one.flags = options.read_only ? cuda::CU_MEM_ACCESS_FLAGS_PROT_READ
                                  : cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    range.access_.push_back(one);
  }
  GPULEASE_RETURN_IF_ERROR(range.Grow(options.subject, options.chunks));
  return range;
}

Status DeviceRange::Grow(const std::string& subject, std::span<const DeviceChunk> chunks) {
  const std::size_t before = sizes_.size();
  const Bytes begin = mapped_;
  Bytes total = 0;
  for (const DeviceChunk& chunk : chunks) total += chunk.size;
  if (total > reserved_ - mapped_) {
    return MakeError(Code::kResourceExhausted, Reason::kTooLarge,
                     subject + ": " + FormatBytes(total) + " more do not fit into the " +
                         FormatBytes(reserved_) + " of addresses that are reserved");
  }
  Status status;
  for (const DeviceChunk& chunk : chunks) {
    if (status = MapChunk(subject, chunk); !status.ok()) break;
  }
  if (status.ok() && total > 0) status = SetAccess(subject, begin);
  if (!status.ok()) static_cast<void>(Shrink(subject, before).ok());
  return status;
}

Status DeviceRange::SetAccess(const std::string& subject, Bytes begin) {
  const driver::CudaDriver& cuda = process_->cuda();
  const auto result =
      cuda.cuMemSetAccess(address_ + begin, mapped_ - begin, access_.data(), access_.size());
  if (result == cuda::CUDA_SUCCESS) return {};
  const bool read_only = access_.front().flags == cuda::CU_MEM_ACCESS_FLAGS_PROT_READ;
  return cuda.MakeError(std::string("cuMemSetAccess ") +
                            (read_only ? "for reading" : "for writing") + " of " + subject +
                            (access_.size() > 1 ? " (the other GPUs need peer access to it)" : ""),
                        result);
}

Status DeviceRange::Shrink(const std::string& subject, std::size_t chunks) {
  const driver::CudaDriver& cuda = process_->cuda();
  Bytes end = 0;
  for (std::size_t i = chunks; i < sizes_.size(); ++i) end += sizes_[i];
  const auto drop = [&] {
    mapped_ -= sizes_.back();
    sizes_.pop_back();
    cuda.cuMemRelease(handles_.back());
    handles_.pop_back();
  };
  // As when all of it goes: in one call, or each by itself.
  if (end > 0 && cuda.cuMemUnmap(address_ + (mapped_ - end), end) == cuda::CUDA_SUCCESS) {
    while (sizes_.size() > chunks) drop();
    return {};
  }
  while (sizes_.size() > chunks) {
    const auto result = cuda.cuMemUnmap(address_ + (mapped_ - sizes_.back()), sizes_.back());
    if (result != cuda::CUDA_SUCCESS) {
      return cuda.MakeError(
          "cuMemUnmap of chunk " + std::to_string(sizes_.size() - 1) + " of " + subject, result);
    }
    drop();
  }
  return {};
}

Status DeviceRange::MapChunk(const std::string& subject, const DeviceChunk& chunk) {
  const driver::CudaDriver& cuda = process_->cuda();
  auto name = [&](const char* step) {
    return std::string(step) + " of chunk " + std::to_string(sizes_.size()) + " (" +
           FormatBytes(chunk.size) + ") of " + subject;
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
      handles_(std::move(other.handles_)),
      access_(std::move(other.access_)) {}

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
