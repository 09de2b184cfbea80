// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/chunk_mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gpulease::e2e {
namespace {

constexpr Bytes kSlice = kMiB;

Bytes FirstOtherIn(const unsigned char* bytes, Bytes size, unsigned char byte) {
  return static_cast<Bytes>(
      std::find_if(bytes, bytes + size, [byte](unsigned char c) { return c != byte; }) - bytes);
}

}  // namespace

Result<std::unique_ptr<ChunkMapping>> ChunkMapping::Map(
    std::shared_ptr<const driver::CudaDriver> cuda, const std::vector<int>& descriptors,
    const std::vector<Bytes>& sizes, bool read_only) {
  std::unique_ptr<ChunkMapping> mapping(new ChunkMapping);
  mapping->cuda_ = std::move(cuda);
  for (const Bytes size : sizes) mapping->size_ += size;
  Status mapped = mapping->cuda_ ? mapping->MapDevice(descriptors, sizes, read_only)
                                 : mapping->MapHost(descriptors, sizes, read_only);
  if (!mapped.ok()) return std::move(mapped).error();
  return mapping;
}

ChunkMapping::~ChunkMapping() {
  if (address_ == 0) return;
  if (!cuda_) {
    munmap(reinterpret_cast<void*>(address_), size_);
    return;
  }
  cuda_->cuMemUnmap(address_, size_);
  cuda_->cuMemAddressFree(address_, size_);
}

Status ChunkMapping::MapHost(const std::vector<int>& descriptors, const std::vector<Bytes>& sizes,
                             bool read_only) {
  const int protection = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const range = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (range == MAP_FAILED) return ErrnoError("mmap", errno);
  address_ = reinterpret_cast<std::uint64_t>(range);
  Bytes offset = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    void* const at = reinterpret_cast<void*>(address_ + offset);
    if (mmap(at, sizes[i], protection, MAP_SHARED | MAP_FIXED, descriptors[i], 0) == MAP_FAILED) {
      return ErrnoError("mmap of a chunk", errno);
    }
    offset += sizes[i];
  }
  return {};
}

Status ChunkMapping::MapDevice(const std::vector<int>& descriptors, const std::vector<Bytes>& sizes,
                               bool read_only) {
  const auto check = [this](const char* what, cuda::CUresult result) {
    return result == cuda::CUDA_SUCCESS ? Status() : Status(cuda_->MakeError(what, result));
  };
  cuda::CUdeviceptr address = 0;
  GPULEASE_RETURN_IF_ERROR(
      check("cuMemAddressReserve", cuda_->cuMemAddressReserve(&address, size_, 0, 0, 0)));
  cuda::CUmemAllocationProp properties{};
  Bytes offset = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    cuda::CUmemGenericAllocationHandle handle = 0;
    GPULEASE_RETURN_IF_ERROR(
        check("cuMemImportFromShareableHandle",
              cuda_->cuMemImportFromShareableHandle(
                  &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptors[i])),
                  cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
    GPULEASE_RETURN_IF_ERROR(
        check("cuMemGetAllocationPropertiesFromHandle",
              cuda_->cuMemGetAllocationPropertiesFromHandle(&properties, handle)));
    GPULEASE_RETURN_IF_ERROR(
        check("cuMemMap", cuda_->cuMemMap(address + offset, sizes[i], 0, handle, 0)));
    cuda_->cuMemRelease(handle);
    offset += sizes[i];
  }
  cuda::CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags =
      read_only ? cuda::CU_MEM_ACCESS_FLAGS_PROT_READ : cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  GPULEASE_RETURN_IF_ERROR(
      check("cuMemSetAccess", cuda_->cuMemSetAccess(address, size_, &access, 1)));
  address_ = address;
  return {};
}

Status ChunkMapping::WithContext() const {
  cuda::CUcontext context = nullptr;
  cuda_->cuCtxGetCurrent(&context);
  if (context != nullptr) return {};
  const cuda::CUresult retained = cuda_->cuDevicePrimaryCtxRetain(&context, 0);
  if (retained != cuda::CUDA_SUCCESS) {
    return cuda_->MakeError("cuDevicePrimaryCtxRetain", retained);
  }
  cuda_->cuCtxSetCurrent(context);
  return {};
}

Status ChunkMapping::Fill(unsigned char byte) {
  if (!cuda_) {
    std::memset(reinterpret_cast<void*>(address_), byte, size_);
    return {};
  }
  GPULEASE_RETURN_IF_ERROR(WithContext());
  cuda::CUresult result = cuda_->cuMemsetD8(address_, byte, size_);
  if (result == cuda::CUDA_SUCCESS) result = cuda_->cuCtxSynchronize();
  if (result != cuda::CUDA_SUCCESS) return cuda_->MakeError("cuMemsetD8", result);
  return {};
}

Result<Bytes> ChunkMapping::FirstOther(unsigned char byte) const {
  if (!cuda_) {
    return FirstOtherIn(reinterpret_cast<const unsigned char*>(address_), size_, byte);
  }
  GPULEASE_RETURN_IF_ERROR(WithContext());
  std::vector<unsigned char> slice(kSlice);
  for (Bytes offset = 0; offset < size_; offset += kSlice) {
    const Bytes size = std::min(kSlice, size_ - offset);
    const cuda::CUresult result = cuda_->cuMemcpyDtoH(slice.data(), address_ + offset, size);
    if (result != cuda::CUDA_SUCCESS) return cuda_->MakeError("cuMemcpyDtoH", result);
    if (const Bytes other = FirstOtherIn(slice.data(), size, byte); other < size) {
      return offset + other;
    }
  }
  return size_;
}

}  // namespace gpulease::e2e
