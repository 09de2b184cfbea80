// SPDX-License-Identifier: Apache-2.0
//
// Events. All work is done when it is asked for: an event is complete as soon as it is recorded,
// and nothing waits. One for several processes is a memfd, which its 64-byte handle names as that
// of memory does.
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "driver/simulated/exports.h"
#include "driver/simulated/process_state.h"

namespace gpulease::cuda {

struct CUevent_st {
  std::atomic<std::int64_t> recorded{-1};  // ns; -1: never
  bool timed = true;
  UniqueFd shared;  // of an interprocess event
};

}  // namespace gpulease::cuda

namespace gpulease {

using namespace simulated;  // NOLINT: the functions must lie in gpulease to be exports.h's

namespace {

constexpr std::uint64_t kEventMagic = 0x31545645'4d495347;  // "GSIMEVT1"
constexpr unsigned int kAllFlags =
    cuda::kEventBlockingSync | cuda::kEventDisableTiming | cuda::kEventInterprocess;

struct EventHandle {
  std::uint64_t magic = kEventMagic;
  std::uint32_t node = 0;
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::int32_t gpu = 0;
  std::uint64_t inode = 0;
  char unused[32] = {};
};
static_assert(sizeof(EventHandle) == sizeof(cuda::CUipcEventHandle));

}  // namespace

cuda::CUresult cuEventCreate(cuda::CUevent* event, unsigned int flags) {
  const int gpu = CurrentGpu();
  GPULEASE_ENTER(cuEventCreate, gpu);
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  const bool interprocess = (flags & cuda::kEventInterprocess) != 0;
  const bool timed = (flags & cuda::kEventDisableTiming) == 0;
  if (event == nullptr || (flags & ~kAllFlags) != 0 || (interprocess && timed))
    return cuda::CUDA_ERROR_INVALID_VALUE;
  UniqueFd shared;
  if (interprocess) {
    shared.Reset(memfd_create("gpulease-event", MFD_CLOEXEC));
    if (!shared) return cuda::CUDA_ERROR_OPERATING_SYSTEM;
  }
  *event = new cuda::CUevent_st;
  (*event)->timed = timed;
  (*event)->shared = std::move(shared);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuEventDestroy(cuda::CUevent event) {
  GPULEASE_ENTER(cuEventDestroy, -1);
  if (event == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
  delete event;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuEventRecord(cuda::CUevent event, cuda::CUstream stream) {
  GPULEASE_ENTER(cuEventRecord, stream != nullptr ? stream->gpu : CurrentGpu());
  if (event == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
  event->recorded = std::chrono::steady_clock::now().time_since_epoch().count();
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuEventSynchronize(cuda::CUevent event) {
  GPULEASE_ENTER(cuEventSynchronize, CurrentGpu());
  return event == nullptr ? cuda::CUDA_ERROR_INVALID_HANDLE : cuda::CUDA_SUCCESS;
}

cuda::CUresult cuEventQuery(cuda::CUevent event) {
  GPULEASE_ENTER(cuEventQuery, CurrentGpu());
  return event == nullptr ? cuda::CUDA_ERROR_INVALID_HANDLE : cuda::CUDA_SUCCESS;
}

cuda::CUresult cuStreamWaitEvent(cuda::CUstream stream, cuda::CUevent event, unsigned int flags) {
  const int gpu = stream != nullptr ? stream->gpu : CurrentGpu();
  GPULEASE_ENTER(cuStreamWaitEvent, gpu);
  if (event == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
  if (flags != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  return gpu < 0 ? cuda::CUDA_ERROR_INVALID_CONTEXT : cuda::CUDA_SUCCESS;
}

cuda::CUresult cuEventElapsedTime(float* milliseconds, cuda::CUevent start, cuda::CUevent end) {
  GPULEASE_ENTER(cuEventElapsedTime, -1);
  if (start == nullptr || end == nullptr || start->recorded < 0 || end->recorded < 0 ||
      !start->timed || !end->timed) {
    return cuda::CUDA_ERROR_INVALID_HANDLE;
  }
  if (milliseconds == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  *milliseconds = static_cast<float>(end->recorded - start->recorded) / 1e6f;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuIpcGetEventHandle(cuda::CUipcEventHandle* handle, cuda::CUevent event) {
  const int gpu = CurrentGpu();
  GPULEASE_ENTER(cuIpcGetEventHandle, gpu);
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (handle == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (event == nullptr || !event->shared) return cuda::CUDA_ERROR_INVALID_HANDLE;
  EventHandle made;
  made.node = State().node.load()->file->node;
  made.pid = getpid();
  made.descriptor = event->shared.get();
  made.gpu = gpu;
  made.inode = InodeOf(event->shared.get());
  std::memcpy(handle->reserved, &made, sizeof made);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuIpcOpenEventHandle(cuda::CUevent* event, cuda::CUipcEventHandle handle) {
  const int gpu = CurrentGpu();
  GPULEASE_ENTER(cuIpcOpenEventHandle, gpu);
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (event == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  EventHandle from;
  std::memcpy(&from, handle.reserved, sizeof from);
  if (from.magic != kEventMagic || from.node != State().node.load()->file->node ||
      from.inode == 0) {
    return cuda::CUDA_ERROR_MAP_FAILED;
  }
  if (from.pid == getpid()) return cuda::CUDA_ERROR_INVALID_CONTEXT;  // as the real driver does
  UniqueFd shared = TakeDescriptor(from.pid, from.descriptor);
  if (!shared || InodeOf(shared.get()) != from.inode) return cuda::CUDA_ERROR_MAP_FAILED;
  *event = new cuda::CUevent_st;
  (*event)->timed = false;
  (*event)->shared = std::move(shared);
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpulease
