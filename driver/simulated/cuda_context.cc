// SPDX-License-Identifier: Apache-2.0
//
// Contexts, and the streams in them. All work is done when it is asked for, so that there is
// nothing to wait for; kernels cannot run.
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "driver/simulated/exports.h"
#include "driver/simulated/process_state.h"

namespace gpulease {

using namespace simulated;  // NOLINT: the functions must lie in gpulease to be exports.h's

namespace {

std::vector<cuda::CUcontext>& Stack() {
  thread_local std::vector<cuda::CUcontext> stack;
  return stack;
}

bool IsContext(cuda::CUcontext context) {
  for (cuda::CUctx_st& known : State().contexts) {
    if (&known == context) return context->retained.load() > 0;
  }
  return false;
}

// Lists the process with NVML; its place is the first free one, or one whose process is dead.
void ListProcess(NodeFile& file, int gpu, Bytes used) {
  const std::int32_t pid = getpid();
  for (ProcessRecord& record : file.processes) {
    std::int32_t there = record.pid.load();
    if (there != 0 && there != pid && !(kill(there, 0) != 0 && errno == ESRCH)) continue;
    if (there == pid && record.gpu.load() != gpu) continue;
    if (!record.pid.compare_exchange_strong(there, pid)) continue;
    record.gpu = gpu;
    record.used = used;
    return;
  }
}

void UnlistProcess(NodeFile& file, int gpu) {
  const std::int32_t pid = getpid();
  for (ProcessRecord& record : file.processes) {
    if (record.pid.load() == pid && record.gpu.load() == gpu) record.pid = 0;
  }
}

}  // namespace

namespace simulated {

int CurrentGpu() {
  const std::vector<cuda::CUcontext>& stack = Stack();
  if (stack.empty() || stack.back() == nullptr || !IsContext(stack.back())) return -1;
  return stack.back()->gpu;
}

void FreeMemoryOf(ProcessState& state, int gpu) {
  std::map<Address, Region>& regions = state.addresses.regions();
  for (auto region = regions.begin(); region != regions.end();) {
    const auto [address, at] = *region;
    ++region;
    if (at.gpu != gpu || at.origin == Origin::kVirtual) continue;
    state.addresses.UnmapWhole(address);
    if (at.descriptor >= 0) close(at.descriptor);
    state.CountMapped(gpu, at.size, false);
  }
}

}  // namespace simulated

cuda::CUresult cuDevicePrimaryCtxRetain(cuda::CUcontext* context, cuda::CUdevice device) {
  ProcessState& state = State();
  const int gpu = state.GpuOf(device);
  GPULEASE_ENTER(cuDevicePrimaryCtxRetain, gpu);
  if (context == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
  const std::unique_lock lock(state.mutex);
  const std::size_t index = static_cast<std::size_t>(gpu);
  cuda::CUctx_st& primary = state.contexts[index];
  if (primary.retained.fetch_add(1) == 0) {
    ListProcess(*state.node.load()->file, gpu, state.mapped[index]);
  }
  *context = &primary;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuDevicePrimaryCtxRelease(cuda::CUdevice device) {
  ProcessState& state = State();
  const int gpu = state.GpuOf(device);
  GPULEASE_ENTER(cuDevicePrimaryCtxRelease, gpu, WhenLost::kServe);
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
  const std::unique_lock lock(state.mutex);
  cuda::CUctx_st& primary = state.contexts[static_cast<std::size_t>(gpu)];
  if (primary.retained.load() == 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (primary.retained.fetch_sub(1) == 1) {
    FreeMemoryOf(state, gpu);
    UnlistProcess(*state.node.load()->file, gpu);
  }
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuCtxGetCurrent(cuda::CUcontext* context) {
  GPULEASE_ENTER(cuCtxGetCurrent, -1);
  if (context == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  *context = Stack().empty() ? nullptr : Stack().back();
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuCtxSetCurrent(cuda::CUcontext context) {
  GPULEASE_ENTER(cuCtxSetCurrent, -1);
  if (context != nullptr && !IsContext(context)) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  std::vector<cuda::CUcontext>& stack = Stack();
  if (context == nullptr) {
    if (!stack.empty()) stack.pop_back();
  } else if (stack.empty()) {
    stack.push_back(context);
  } else {
    stack.back() = context;
  }
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuCtxPushCurrent(cuda::CUcontext context) {
  GPULEASE_ENTER(cuCtxPushCurrent, -1);
  if (!IsContext(context)) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  Stack().push_back(context);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuCtxPopCurrent(cuda::CUcontext* context) {
  GPULEASE_ENTER(cuCtxPopCurrent, -1);
  if (Stack().empty()) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = Stack().back();
  Stack().pop_back();
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuCtxGetDevice(cuda::CUdevice* device) {
  const int gpu = CurrentGpu();
  GPULEASE_ENTER(cuCtxGetDevice, gpu, WhenLost::kServe);
  if (device == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  const std::shared_lock lock(State().mutex);
  *device = State().OrdinalOf(gpu);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuCtxSynchronize() {
  const int gpu = CurrentGpu();
  GPULEASE_ENTER(cuCtxSynchronize, gpu);
  return gpu < 0 ? cuda::CUDA_ERROR_INVALID_CONTEXT : cuda::CUDA_SUCCESS;
}

cuda::CUresult cuStreamCreate(cuda::CUstream* stream, unsigned int flags) {
  const int gpu = CurrentGpu();
  GPULEASE_ENTER(cuStreamCreate, gpu);
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (stream == nullptr || flags > cuda::kStreamNonBlocking) return cuda::CUDA_ERROR_INVALID_VALUE;
  *stream = new cuda::CUstream_st{gpu};
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuStreamDestroy(cuda::CUstream stream) {
  GPULEASE_ENTER(cuStreamDestroy, -1);
  if (stream == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
  delete stream;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuStreamSynchronize(cuda::CUstream stream) {
  const int gpu = stream != nullptr ? stream->gpu : CurrentGpu();
  GPULEASE_ENTER(cuStreamSynchronize, gpu);
  return gpu < 0 ? cuda::CUDA_ERROR_INVALID_CONTEXT : cuda::CUDA_SUCCESS;
}

cuda::CUresult cuStreamGetCtx(cuda::CUstream stream, cuda::CUcontext* context) {
  const int gpu = stream != nullptr ? stream->gpu : CurrentGpu();
  GPULEASE_ENTER(cuStreamGetCtx, gpu);
  if (context == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  *context = &State().contexts[static_cast<std::size_t>(gpu)];
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuModuleLoadData(cuda::CUmodule*, const void*) {
  GPULEASE_ENTER(cuModuleLoadData, CurrentGpu());
  return cuda::CUDA_ERROR_NOT_SUPPORTED;
}

cuda::CUresult cuModuleUnload(cuda::CUmodule) {
  GPULEASE_ENTER(cuModuleUnload, CurrentGpu());
  return cuda::CUDA_ERROR_NOT_SUPPORTED;
}

cuda::CUresult cuModuleGetFunction(cuda::CUfunction*, cuda::CUmodule, const char*) {
  GPULEASE_ENTER(cuModuleGetFunction, CurrentGpu());
  return cuda::CUDA_ERROR_NOT_SUPPORTED;
}

cuda::CUresult cuLaunchKernel(cuda::CUfunction, unsigned int, unsigned int, unsigned int,
                              unsigned int, unsigned int, unsigned int, unsigned int,
                              cuda::CUstream, void**, void**) {
  GPULEASE_ENTER(cuLaunchKernel, CurrentGpu());
  return cuda::CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace gpulease
