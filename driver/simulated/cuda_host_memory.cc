// SPDX-License-Identifier: Apache-2.0
//
// Registering host memory: it populates the pages as pinning does, and keeps the books.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "driver/simulated/exports.h"
#include "driver/simulated/process_state.h"

namespace gpulease {

using namespace simulated;  // NOLINT: the functions must lie in gpulease to be exports.h's

namespace {

#ifndef MADV_POPULATE_READ
constexpr int MADV_POPULATE_READ = 22;
constexpr int MADV_POPULATE_WRITE = 23;
#endif

// A kernel before 5.14 cannot say whether memory could be pinned.
bool KernelPopulates() {
  static const bool can = [] {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* probe = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe == MAP_FAILED) return false;
    const bool populated = madvise(probe, page, MADV_POPULATE_WRITE) == 0;
    munmap(probe, page);
    return populated;
  }();
  return can;
}

}  // namespace

cuda::CUresult cuMemHostRegister(void* address, std::size_t size, unsigned int flags) {
  const int gpu = CurrentGpu();
  GPULEASE_ENTER(cuMemHostRegister, gpu);
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(address);
  if (address == nullptr || size == 0 || !CheckedAdd(start, size).has_value() || flags > 15) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  const auto next = state.registered.lower_bound(start);
  const bool before =
      next != state.registered.begin() && std::prev(next)->first + std::prev(next)->second > start;
  if (before || (next != state.registered.end() && next->first < start + size)) {
    return cuda::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  const std::uintptr_t page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = start / page * page;
  const std::uintptr_t end = (start + size + page - 1) / page * page;
  const bool read_only = (flags & cuda::kMemHostRegisterReadOnly) != 0;
  if (KernelPopulates() && madvise(reinterpret_cast<void*>(first), end - first,
                                   read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE) != 0) {
    return errno == EAGAIN || errno == ENOMEM ? cuda::CUDA_ERROR_OUT_OF_MEMORY
                                              : cuda::CUDA_ERROR_INVALID_VALUE;
  }
  state.registered[start] = size;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemHostUnregister(void* address) {
  GPULEASE_ENTER(cuMemHostUnregister, CurrentGpu(), WhenLost::kServe);
  if (CurrentGpu() < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  return state.registered.erase(reinterpret_cast<std::uintptr_t>(address)) == 1
             ? cuda::CUDA_SUCCESS
             : cuda::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

cuda::CUresult cuMemHostGetDevicePointer(cuda::CUdeviceptr* device, void* host,
                                         unsigned int flags) {
  const int gpu = CurrentGpu();
  GPULEASE_ENTER(cuMemHostGetDevicePointer, gpu);
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (device == nullptr || flags != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(host);
  ProcessState& state = State();
  const std::shared_lock lock(state.mutex);
  auto at = state.registered.upper_bound(address);
  if (at == state.registered.begin()) return cuda::CUDA_ERROR_INVALID_VALUE;
  --at;
  if (address - at->first >= at->second) return cuda::CUDA_ERROR_INVALID_VALUE;
  *device = address;
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpulease
