// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/memory/host_range.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace gpulease {
namespace {

// cuda.h: CU_MEMHOSTREGISTER_PORTABLE, _DEVICEMAP, _READ_ONLY.
constexpr unsigned kPortable = 1;
constexpr unsigned kDeviceMap = 2;
constexpr unsigned kReadOnly = 8;

}  // namespace

Result<HostRange> HostRange::Map(const Options& options) {
  Bytes total = 0;
  for (const HostChunk& chunk : options.chunks) total += chunk.size;
  // Reserve with room to align, then give back what is around.
  const Bytes room = total + options.alignment;
  void* reserved =
      mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    return ErrnoError(
        "mmap: reserve " + FormatBytes(total) + " of addresses for " + options.subject, errno);
  }
  auto* const begin = static_cast<std::byte*>(reserved);
  const auto misplaced = reinterpret_cast<std::uintptr_t>(begin) % options.alignment;
  const Bytes head = misplaced == 0 ? 0 : options.alignment - misplaced;
  if (head > 0) munmap(begin, head);
  if (options.alignment > head) munmap(begin + head + total, options.alignment - head);
  HostRange range;
  range.address_ = begin + head;
  range.size_ = total;
  range.read_only_ = options.read_only;

  std::byte* at = range.address_;
  const int protection = options.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  for (std::size_t i = 0; i < options.chunks.size(); ++i) {
    const HostChunk& chunk = options.chunks[i];
    if (mmap(at, chunk.size, protection, MAP_SHARED | MAP_FIXED, chunk.descriptor, 0) ==
        MAP_FAILED) {
      return ErrnoError("mmap of chunk " + std::to_string(i) + " (" + FormatBytes(chunk.size) +
                            ") of " + options.subject,
                        errno);
    }
    at += chunk.size;
  }
  if (madvise(range.address_, total, MADV_DONTFORK) != 0) {
    return ErrnoError("madvise(MADV_DONTFORK) of " + options.subject, errno);
  }
  return range;
}

Status HostRange::Register(std::shared_ptr<const CudaProcess> process, int ordinal,
                           const std::string& subject) {
  process_ = std::move(process);
  const driver::CudaDriver& cuda = process_->cuda();
  cuda::CUcontext current = nullptr;
  if (cuda.cuCtxGetCurrent(&current) == cuda::CUDA_SUCCESS && current != nullptr) {
    context_ = current;
    Status status = RegisterHere(subject);
    if (!status.ok()) process_ = nullptr;
    return status;
  }
  auto result = cuda.cuDevicePrimaryCtxRetain(&context_, ordinal);
  if (result != cuda::CUDA_SUCCESS) {
    Error error = cuda.MakeError(
        "cuDevicePrimaryCtxRetain of GPU " + std::to_string(ordinal) + " to register " + subject,
        result);
    process_ = nullptr;
    return error;
  }
  Status status;
  if (result = cuda.cuCtxPushCurrent(context_); result != cuda::CUDA_SUCCESS) {
    status = cuda.MakeError("cuCtxPushCurrent to register " + subject, result);
  } else {
    status = RegisterHere(subject);
    cuda.cuCtxPopCurrent(&current);
  }
  if (!status.ok()) {
    cuda.cuDevicePrimaryCtxRelease(ordinal);
    process_ = nullptr;
    return status;
  }
  retained_ = ordinal;
  return {};
}

Status HostRange::RegisterHere(const std::string& subject) {
  const driver::CudaDriver& cuda = process_->cuda();
  const unsigned flags = kPortable | kDeviceMap | (read_only_ ? kReadOnly : 0);
  auto result = cuda.cuMemHostRegister(address_, size_, flags);
  if (result != cuda::CUDA_SUCCESS) {
    Error error =
        cuda.MakeError("cuMemHostRegister of " + FormatBytes(size_) + " of " + subject, result);
    if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY || result == cuda::CUDA_ERROR_OPERATING_SYSTEM) {
      error.code = Code::kResourceExhausted;
      error.reason = Reason::kHostMemoryShort;
      error.message +=
          ": the memory could not be locked; raise the limit (ulimit -l unlimited, "
          "LimitMEMLOCK=infinity; in a container --ulimit memlock=-1) or map without CUDA";
    }
    return error;
  }
  result = cuda.cuMemHostGetDevicePointer(&device_address_, address_, 0);
  if (result != cuda::CUDA_SUCCESS) {
    cuda.cuMemHostUnregister(address_);
    return cuda.MakeError("cuMemHostGetDevicePointer of " + subject, result);
  }
  return {};
}

HostRange::HostRange(HostRange&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)),
      size_(other.size_),
      read_only_(other.read_only_),
      process_(std::move(other.process_)),
      context_(other.context_),
      retained_(other.retained_),
      device_address_(other.device_address_) {}

void HostRange::Disown() {
  address_ = nullptr;
  process_ = nullptr;
}

HostRange::~HostRange() {
  if (!address_) return;
  if (process_) {
    const driver::CudaDriver& cuda = process_->cuda();
    // The program may have destroyed its context by now; the registration went with it.
    if (cuda.cuCtxPushCurrent(context_) == cuda::CUDA_SUCCESS) {
      cuda.cuMemHostUnregister(address_);
      cuda::CUcontext popped = nullptr;
      cuda.cuCtxPopCurrent(&popped);
    }
    if (retained_ >= 0) cuda.cuDevicePrimaryCtxRelease(retained_);
  }
  munmap(address_, size_);
}

}  // namespace gpulease
