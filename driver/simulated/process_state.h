// SPDX-License-Identifier: Apache-2.0
//
// What the simulated driver knows of this process: the node it serves, the GPUs that it shows, the
// handles, addresses and contexts that were made.
//
// Never destroyed: at exit other threads may still be in a call, and a forked child must not undo
// its parent's work.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string_view>
#include <vector>

#include "driver/simulated/address_space.h"
#include "driver/simulated/node_file.h"

namespace gpulease::cuda {

// A GPU's primary context in this process.
struct CUctx_st {
  int gpu = 0;
  std::atomic<int> retained{0};
};

struct CUstream_st {
  int gpu;
};

}  // namespace gpulease::cuda

namespace gpulease::simulated {

// A chunk that this process has a driver handle for.
struct OpenChunk {
  UniqueFd descriptor;
  int gpu = 0;
  Bytes size = 0;
  bool exportable = false;
};

struct ProcessState {
  ProcessState();

  // Set before anything else and rarely changed; read without the lock.
  std::atomic<NodeMapping*> node{nullptr};
  std::atomic<bool> forked{false};
  std::atomic<bool> cuda_ready{false};
  std::atomic<bool> nvml_ready{false};

  std::shared_mutex mutex;
  // Under mutex. Nodes that were served stay mapped.
  std::vector<std::shared_ptr<NodeMapping>> nodes;
  std::vector<int> visible;  // by ordinal: the GPU's index in the node
  std::map<cuda::CUmemGenericAllocationHandle, std::shared_ptr<OpenChunk>> handles;
  cuda::CUmemGenericAllocationHandle next_handle = 0x1000;
  AddressSpace addresses;
  std::map<std::uintptr_t, Bytes> registered;  // host memory
  std::array<Bytes, kMaxGpus> mapped = {};

  std::array<cuda::CUctx_st, kMaxGpus> contexts;

  int ordinals() {
    const std::shared_lock lock(mutex);
    return static_cast<int>(visible.size());
  }
  // The GPU of an ordinal; -1 when there is none.
  int GpuOf(int ordinal) {
    const std::shared_lock lock(mutex);
    return ordinal >= 0 && ordinal < static_cast<int>(visible.size())
               ? visible[static_cast<std::size_t>(ordinal)]
               : -1;
  }
  // The ordinal of a GPU; -1 when this process does not see it. With the lock held.
  int OrdinalOf(int gpu) const;
  // Counts what is mapped of a GPU, for NVML's list of processes. With the lock held.
  void CountMapped(int gpu, Bytes size, bool more);
};

ProcessState& State();

// Whether a lost GPU refuses the call; identity can be asked of it, and what is held let go.
enum class WhenLost { kRefuse, kServe };

// What every call begins with: is the driver initialised, and what does the call meet?
inline cuda::CUresult Enter(std::uint64_t function, int gpu,
                            WhenLost when_lost = WhenLost::kRefuse) {
  ProcessState& state = State();
  if (!state.cuda_ready.load(std::memory_order_acquire) ||
      state.forked.load(std::memory_order_relaxed)) {
    return cuda::CUDA_ERROR_NOT_INITIALIZED;
  }
  NodeFile& file = *state.node.load(std::memory_order_acquire)->file;
  if (file.armed.load(std::memory_order_relaxed) == 0) return cuda::CUDA_SUCCESS;
  const Meeting meeting = MeetFaults(file, function, gpu);
  if (meeting.code.has_value()) return static_cast<cuda::CUresult>(*meeting.code);
  if (meeting.lost && when_lost == WhenLost::kRefuse) return cuda::CUDA_ERROR_DEVICE_UNAVAILABLE;
  return cuda::CUDA_SUCCESS;
}

#define GPULEASE_ENTER(function, ...)                                 \
  do {                                                                \
    constexpr std::uint64_t kFunction = FunctionId(#function);        \
    if (const cuda::CUresult entered = Enter(kFunction, __VA_ARGS__); \
        entered != cuda::CUDA_SUCCESS) {                              \
      return entered;                                                 \
    }                                                                 \
  } while (false)

// The GPU of the thread's current context; -1 when it has none, or a released one.
int CurrentGpu();
// The inode of what a descriptor stands for; 0: of nothing.
std::uint64_t InodeOf(int descriptor);
// A duplicate of another process's descriptor, with what the kernel knows of it; where its rules on
// tracing do not let one process take another's, the file opened anew.
UniqueFd TakeDescriptor(int pid, int descriptor);
// Gives the memory back that a context's end frees. With the lock held.
void FreeMemoryOf(ProcessState& state, int gpu);

}  // namespace gpulease::simulated
