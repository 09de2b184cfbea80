// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: chunks, their handles, and where they are mapped. None of it needs a
// context, as on the real driver.
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "driver/simulated/exports.h"
#include "driver/simulated/process_state.h"

namespace gpulease {

using namespace simulated;  // NOLINT: the functions must lie in gpulease to be exports.h's

namespace {

bool IsGranular(std::uint64_t value) { return value % kGranularity == 0; }

// The GPU that the properties ask for; -1 when they ask for something else than pinned device
// memory.
int GpuOfProperties(const cuda::CUmemAllocationProp* properties) {
  if (properties == nullptr || properties->type != cuda::CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != cuda::CU_MEM_LOCATION_TYPE_DEVICE) {
    return -1;
  }
  return State().GpuOf(properties->location.id);
}

cuda::CUresult RefusalOfProperties(const cuda::CUmemAllocationProp* properties) {
  if (properties == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (properties->type != cuda::CU_MEM_ALLOCATION_TYPE_PINNED) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  switch (properties->location.type) {
    case cuda::CU_MEM_LOCATION_TYPE_DEVICE:
      if (State().GpuOf(properties->location.id) < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
      break;
    case cuda::CU_MEM_LOCATION_TYPE_HOST:
    case cuda::CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return cuda::CUDA_ERROR_NOT_SUPPORTED;
    default:
      return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  switch (properties->requestedHandleTypes) {
    case cuda::CU_MEM_HANDLE_TYPE_NONE:
    case cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
      return cuda::CUDA_SUCCESS;
    default:
      return cuda::CUDA_ERROR_NOT_SUPPORTED;
  }
}

std::shared_ptr<OpenChunk> ChunkOf(cuda::CUmemGenericAllocationHandle handle) {
  ProcessState& state = State();
  const std::shared_lock lock(state.mutex);
  const auto found = state.handles.find(handle);
  return found == state.handles.end() ? nullptr : found->second;
}

cuda::CUmemGenericAllocationHandle NewHandle(std::shared_ptr<OpenChunk> chunk) {
  ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  const cuda::CUmemGenericAllocationHandle handle = state.next_handle++;
  state.handles.emplace(handle, std::move(chunk));
  return handle;
}

}  // namespace

cuda::CUresult cuMemGetAllocationGranularity(std::size_t* granularity,
                                             const cuda::CUmemAllocationProp* properties,
                                             cuda::CUmemAllocationGranularity_flags option) {
  GPULEASE_ENTER(cuMemGetAllocationGranularity, GpuOfProperties(properties));
  if (granularity == nullptr || option > cuda::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  if (const cuda::CUresult refusal = RefusalOfProperties(properties);
      refusal != cuda::CUDA_SUCCESS) {
    return refusal;
  }
  *granularity = kGranularity;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemCreate(cuda::CUmemGenericAllocationHandle* handle, std::size_t size,
                           const cuda::CUmemAllocationProp* properties, unsigned long long flags) {
  const int gpu = GpuOfProperties(properties);
  GPULEASE_ENTER(cuMemCreate, gpu);
  if (handle == nullptr || flags != 0 || size == 0 || !IsGranular(size)) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  if (const cuda::CUresult refusal = RefusalOfProperties(properties);
      refusal != cuda::CUDA_SUCCESS) {
    return refusal;
  }
  auto chunk = std::make_shared<OpenChunk>();
  chunk->gpu = gpu;
  chunk->size = size;
  chunk->exportable =
      properties->requestedHandleTypes == cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  switch (State().node.load()->MakeChunk(gpu, size, &chunk->descriptor)) {
    case NodeMapping::Outcome::kOk:
      break;
    case NodeMapping::Outcome::kOutOfMemory:
      return cuda::CUDA_ERROR_OUT_OF_MEMORY;
    case NodeMapping::Outcome::kOperatingSystem:
      return cuda::CUDA_ERROR_OPERATING_SYSTEM;
  }
  *handle = NewHandle(std::move(chunk));
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemRelease(cuda::CUmemGenericAllocationHandle handle) {
  const std::shared_ptr<OpenChunk> chunk = ChunkOf(handle);
  GPULEASE_ENTER(cuMemRelease, chunk != nullptr ? chunk->gpu : -1, WhenLost::kServe);
  ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  return state.handles.erase(handle) == 1 ? cuda::CUDA_SUCCESS : cuda::CUDA_ERROR_INVALID_VALUE;
}

cuda::CUresult cuMemExportToShareableHandle(void* shareable,
                                            cuda::CUmemGenericAllocationHandle handle,
                                            cuda::CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  const std::shared_ptr<OpenChunk> chunk = ChunkOf(handle);
  GPULEASE_ENTER(cuMemExportToShareableHandle, chunk != nullptr ? chunk->gpu : -1);
  if (shareable == nullptr || chunk == nullptr || flags != 0 || !chunk->exportable) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  if (type != cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return cuda::CUDA_ERROR_NOT_SUPPORTED;
  }
  UniqueFd exported = chunk->descriptor.Duplicate();
  if (!exported) return cuda::CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(shareable) = exported.Release();
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemImportFromShareableHandle(cuda::CUmemGenericAllocationHandle* handle,
                                              void* shareable,
                                              cuda::CUmemAllocationHandleType type) {
  const int descriptor = static_cast<int>(reinterpret_cast<std::uintptr_t>(shareable));
  std::optional<ChunkIdentity> identity;
  if (type == cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) identity = IdentifyChunk(descriptor);
  GPULEASE_ENTER(cuMemImportFromShareableHandle, identity.has_value() ? identity->gpu : -1);
  if (type != cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return cuda::CUDA_ERROR_NOT_SUPPORTED;
  }
  ProcessState& state = State();
  if (handle == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (!identity.has_value() || identity->node != state.node.load()->file->node) {
    return cuda::CUDA_ERROR_UNKNOWN;  // what the real driver says of a descriptor that is no chunk
  }
  {
    const std::shared_lock lock(state.mutex);
    if (state.OrdinalOf(identity->gpu) < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
  }
  auto chunk = std::make_shared<OpenChunk>();
  chunk->descriptor.Reset(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!chunk->descriptor) return cuda::CUDA_ERROR_OPERATING_SYSTEM;
  // Nothing to do for a descriptor that was sent; one that was opened anew through /proc is a
  // description of its own, and is recorded when the first one is gone.
  static_cast<void>(RecordChunk(chunk->descriptor.get(), *identity));
  chunk->gpu = identity->gpu;
  chunk->size = identity->size;
  chunk->exportable = true;
  *handle = NewHandle(std::move(chunk));
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemGetAllocationPropertiesFromHandle(cuda::CUmemAllocationProp* properties,
                                                      cuda::CUmemGenericAllocationHandle handle) {
  const std::shared_ptr<OpenChunk> chunk = ChunkOf(handle);
  GPULEASE_ENTER(cuMemGetAllocationPropertiesFromHandle, chunk != nullptr ? chunk->gpu : -1);
  if (properties == nullptr || chunk == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->requestedHandleTypes = chunk->exportable
                                         ? cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                         : cuda::CU_MEM_HANDLE_TYPE_NONE;
  properties->location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
  const std::shared_lock lock(State().mutex);
  properties->location.id = State().OrdinalOf(chunk->gpu);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemAddressReserve(cuda::CUdeviceptr* address, std::size_t size,
                                   std::size_t alignment, cuda::CUdeviceptr hint,
                                   unsigned long long flags) {
  GPULEASE_ENTER(cuMemAddressReserve, -1);
  if (address == nullptr || flags != 0 || size == 0 || !IsGranular(size) || !IsGranular(hint) ||
      (alignment & (alignment - 1)) != 0) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  const Bytes aligned = alignment > kGranularity ? alignment : kGranularity;
  const Address reserved = state.addresses.Reserve(size, aligned, hint);
  if (reserved == 0) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  *address = reserved;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemAddressFree(cuda::CUdeviceptr address, std::size_t size) {
  GPULEASE_ENTER(cuMemAddressFree, -1);
  ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  return state.addresses.Free(address, size) ? cuda::CUDA_SUCCESS : cuda::CUDA_ERROR_INVALID_VALUE;
}

cuda::CUresult cuMemMap(cuda::CUdeviceptr address, std::size_t size, std::size_t offset,
                        cuda::CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const std::shared_ptr<OpenChunk> chunk = ChunkOf(handle);
  GPULEASE_ENTER(cuMemMap, chunk != nullptr ? chunk->gpu : -1);
  if (chunk == nullptr || flags != 0 || size == 0 || !IsGranular(size) || !IsGranular(address) ||
      offset != 0 || size > chunk->size) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  Region region;
  region.size = size;
  region.gpu = chunk->gpu;
  if (!state.addresses.Map(address, region, chunk->descriptor.get(), offset)) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  state.CountMapped(chunk->gpu, size, true);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemUnmap(cuda::CUdeviceptr address, std::size_t size) {
  GPULEASE_ENTER(cuMemUnmap, -1);
  ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  if (!state.addresses.IsWhole(address, size)) return cuda::CUDA_ERROR_INVALID_VALUE;
  std::map<Address, Region>& regions = state.addresses.regions();
  for (auto at = regions.find(address); at != regions.end() && at->first < address + size; ++at) {
    state.CountMapped(at->second.gpu, at->second.size, false);
  }
  state.addresses.Unmap(address, size);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemSetAccess(cuda::CUdeviceptr address, std::size_t size,
                              const cuda::CUmemAccessDesc* access, std::size_t count) {
  const bool device = access != nullptr && count > 0 &&
                      access[0].location.type == cuda::CU_MEM_LOCATION_TYPE_DEVICE;
  GPULEASE_ENTER(cuMemSetAccess, device ? State().GpuOf(access[0].location.id) : -1);
  if (access == nullptr || count == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  if (!state.addresses.IsWhole(address, size)) return cuda::CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    const cuda::CUmemLocation& location = access[i].location;
    if (location.type != cuda::CU_MEM_LOCATION_TYPE_DEVICE) return cuda::CUDA_ERROR_NOT_SUPPORTED;
    if (location.id < 0 || location.id >= static_cast<int>(state.visible.size())) {
      return cuda::CUDA_ERROR_INVALID_DEVICE;
    }
    if (access[i].flags != cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        access[i].flags != cuda::CU_MEM_ACCESS_FLAGS_PROT_READ &&
        access[i].flags != cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return cuda::CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    const int gpu = state.visible[static_cast<std::size_t>(access[i].location.id)];
    if (!state.addresses.SetAccess(address, size, gpu,
                                   access[i].flags != cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE,
                                   access[i].flags == cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
      return cuda::CUDA_ERROR_NOT_PERMITTED;
    }
  }
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpulease
