// SPDX-License-Identifier: Apache-2.0
//
// 64-byte CUDA IPC handles: they name a descriptor of the process that made them, and the opener
// takes a duplicate of it from that process.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "driver/simulated/exports.h"
#include "driver/simulated/process_state.h"

namespace gpulease {

using namespace simulated;  // NOLINT: the functions must lie in gpulease to be exports.h's

namespace {

constexpr std::uint64_t kIpcMagic = 0x31504943'4d495347;  // "GSIMCIP1"

struct IpcHandle {
  std::uint64_t magic = kIpcMagic;
  std::uint32_t node = 0;
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::int32_t gpu = 0;
  std::uint64_t inode = 0;  // of the memfd: what the descriptor number must still stand for
  std::uint64_t size = 0;
  char unused[24] = {};
};
static_assert(sizeof(IpcHandle) == sizeof(cuda::CUipcMemHandle));

}  // namespace

namespace simulated {

std::uint64_t InodeOf(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

UniqueFd TakeDescriptor(int pid, int descriptor) {
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return UniqueFd();
  UniqueFd taken(static_cast<int>(syscall(SYS_pidfd_getfd, process.get(), descriptor, 0)));
  if (!taken) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, descriptor);
    taken.Reset(open(path, O_RDWR | O_CLOEXEC));
  }
  return taken;
}

}  // namespace simulated

cuda::CUresult cuIpcGetMemHandle(cuda::CUipcMemHandle* handle, cuda::CUdeviceptr address) {
  const int current = CurrentGpu();
  GPULEASE_ENTER(cuIpcGetMemHandle, current);
  if (current < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (handle == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  ProcessState& state = State();
  const std::shared_lock lock(state.mutex);
  const Region* region = state.addresses.Find(address);
  if (region == nullptr || region->origin != Origin::kAllocated) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  IpcHandle made;
  made.node = state.node.load()->file->node;
  made.pid = getpid();
  made.descriptor = region->descriptor;
  made.gpu = region->gpu;
  made.inode = InodeOf(region->descriptor);
  made.size = region->size;
  std::memcpy(handle->reserved, &made, sizeof made);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuIpcOpenMemHandle(cuda::CUdeviceptr* address, cuda::CUipcMemHandle handle,
                                  unsigned int flags) {
  const int current = CurrentGpu();
  GPULEASE_ENTER(cuIpcOpenMemHandle, current);
  if (current < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  IpcHandle from;
  std::memcpy(&from, handle.reserved, sizeof from);
  ProcessState& state = State();
  if (address == nullptr || flags != cuda::kIpcMemLazyEnablePeerAccess || from.magic != kIpcMagic ||
      from.node != state.node.load()->file->node || from.inode == 0) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  if (from.pid == getpid()) return cuda::CUDA_ERROR_INVALID_CONTEXT;  // as the real driver does
  const std::unique_lock lock(state.mutex);
  if (state.OrdinalOf(from.gpu) < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
  for (auto& [start, region] : state.addresses.regions()) {
    if (region.origin == Origin::kIpc && region.inode == from.inode) {
      ++region.opened;
      *address = start;
      return cuda::CUDA_SUCCESS;
    }
  }
  const UniqueFd chunk = TakeDescriptor(from.pid, from.descriptor);
  if (!chunk) return cuda::CUDA_ERROR_INVALID_VALUE;
  const std::optional<ChunkIdentity> identity = IdentifyChunk(chunk.get());
  if (!identity.has_value() || InodeOf(chunk.get()) != from.inode || identity->gpu != from.gpu ||
      identity->size != from.size || identity->node != from.node) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  Region region;
  region.size = from.size;
  region.gpu = from.gpu;
  region.origin = Origin::kIpc;
  region.inode = from.inode;
  const Address mapped = state.addresses.MapWhole(region, chunk.get());
  if (mapped == 0) return cuda::CUDA_ERROR_MAP_FAILED;
  state.CountMapped(from.gpu, from.size, true);
  *address = mapped;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuIpcCloseMemHandle(cuda::CUdeviceptr address) {
  const int current = CurrentGpu();
  GPULEASE_ENTER(cuIpcCloseMemHandle, current, WhenLost::kServe);
  if (current < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  Region* at = state.addresses.At(address);
  if (at == nullptr || at->origin != Origin::kIpc) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (--at->opened > 0) return cuda::CUDA_SUCCESS;
  const Region region = *at;
  state.addresses.UnmapWhole(address);
  state.CountMapped(region.gpu, region.size, false);
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpulease
