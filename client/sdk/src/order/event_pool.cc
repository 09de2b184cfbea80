// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/order/event_pool.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "client/sdk/src/process/fork_guard.h"

namespace gpulease {
namespace {

struct Entry {
  cuda::CUcontext context = nullptr;
  LocalEvent local;
  bool taken = false;
};

// Under a ForkHold. Never destroyed; a forked child begins with none.
std::vector<Entry>& Entries() {
  static std::vector<Entry>* const entries = new std::vector<Entry>;
  static std::uint64_t generation = ForkGeneration();
  if (generation != ForkGeneration()) {
    entries->clear();
    generation = ForkGeneration();
  }
  return *entries;
}

}  // namespace

Result<LocalEvent> EventPool::Take(const driver::CudaDriver& cuda, cuda::CUcontext context) {
  {
    const ForkHold hold;
    for (Entry& entry : Entries()) {
      if (entry.taken || entry.context != context) continue;
      entry.taken = true;
      return entry.local;
    }
  }
  LocalEvent made;
  auto result =
      cuda.cuEventCreate(&made.event, cuda::kEventInterprocess | cuda::kEventDisableTiming);
  if (result != cuda::CUDA_SUCCESS) return cuda.MakeError("cuEventCreate of one to share", result);
  cuda::CUipcEventHandle handle{};
  result = cuda.cuIpcGetEventHandle(&handle, made.event);
  if (result != cuda::CUDA_SUCCESS) {
    cuda.cuEventDestroy(made.event);
    return cuda.MakeError("cuIpcGetEventHandle", result);
  }
  static_assert(sizeof handle == sizeof made.handle);
  std::memcpy(made.handle.data(), &handle, sizeof handle);
  const ForkHold hold;
  Entries().push_back({context, made, true});
  return made;
}

void EventPool::PutBack(const LocalEvent& event) {
  const ForkHold hold;
  for (Entry& entry : Entries()) {
    if (entry.local.event == event.event) entry.taken = false;
  }
}

void EventPool::Drop(const LocalEvent& event) {
  const ForkHold hold;
  std::erase_if(Entries(), [&](const Entry& entry) { return entry.local.event == event.event; });
}

std::optional<cuda::CUevent> EventPool::Find(const EventHandle& handle) {
  const ForkHold hold;
  for (const Entry& entry : Entries()) {
    if (entry.local.handle == handle) return entry.local.event;
  }
  return std::nullopt;
}

}  // namespace gpulease
