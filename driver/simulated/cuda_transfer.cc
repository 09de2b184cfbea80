// SPDX-License-Identifier: Apache-2.0
//
// Plain allocations, copies and fills. A copy is done when the call returns, on a stream or not.
#include <unistd.h>

#include <cstring>

#include "driver/simulated/exports.h"
#include "driver/simulated/process_state.h"

namespace gpulease {

using namespace simulated;  // NOLINT: the functions must lie in gpulease to be exports.h's

namespace {

struct Side {
  cuda::CUdeviceptr address;
  bool must_be_device;
  bool checked;  // false: a host pointer, which is the caller's to answer for
};

Side Device(cuda::CUdeviceptr address) { return {address, true, true}; }
Side Host(const void* pointer) {
  return {reinterpret_cast<cuda::CUdeviceptr>(pointer), false, false};
}
Side Either(cuda::CUdeviceptr address) { return {address, false, true}; }

// With the state's lock held for reading.
cuda::CUresult CheckSide(ProcessState& state, const Side& side, std::size_t size, bool write) {
  if (!side.checked) return cuda::CUDA_SUCCESS;
  switch (state.addresses.Check(side.address, size, write)) {
    case AddressSpace::Verdict::kOk:
      return cuda::CUDA_SUCCESS;
    case AddressSpace::Verdict::kNoAccess:
      return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
    case AddressSpace::Verdict::kNotDevice:
      break;
  }
  if (!side.must_be_device) return cuda::CUDA_SUCCESS;
  // Registered host memory has a device address, which is its own.
  auto registered = state.registered.upper_bound(side.address);
  if (registered != state.registered.begin()) {
    --registered;
    const Bytes inside = side.address - registered->first;
    if (inside < registered->second && size <= registered->second - inside) {
      return cuda::CUDA_SUCCESS;
    }
  }
  return cuda::CUDA_ERROR_INVALID_VALUE;
}

// The GPU that the call is about: of the memory, for faults and lost GPUs.
int GpuOfAddress(cuda::CUdeviceptr address) {
  ProcessState& state = State();
  const std::shared_lock lock(state.mutex);
  const Region* region = state.addresses.Find(address);
  return region != nullptr ? region->gpu : CurrentGpu();
}

cuda::CUresult Copy(const Side& to, const Side& from, std::size_t size) {
  if (CurrentGpu() < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (size == 0) return cuda::CUDA_SUCCESS;
  ProcessState& state = State();
  // Held during the copy: nobody unmaps under it.
  const std::shared_lock lock(state.mutex);
  if (const cuda::CUresult bad = CheckSide(state, to, size, true); bad != cuda::CUDA_SUCCESS) {
    return bad;
  }
  if (const cuda::CUresult bad = CheckSide(state, from, size, false); bad != cuda::CUDA_SUCCESS) {
    return bad;
  }
  std::memmove(reinterpret_cast<void*>(to.address), reinterpret_cast<const void*>(from.address),
               size);
  return cuda::CUDA_SUCCESS;
}

}  // namespace

cuda::CUresult cuMemAlloc(cuda::CUdeviceptr* address, std::size_t size) {
  const int gpu = CurrentGpu();
  GPULEASE_ENTER(cuMemAlloc, gpu);
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (address == nullptr || size == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  const std::optional<Bytes> rounded = RoundUp(size, kGranularity);
  if (!rounded.has_value()) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  ProcessState& state = State();
  UniqueFd chunk;
  switch (state.node.load()->MakeChunk(gpu, *rounded, &chunk)) {
    case NodeMapping::Outcome::kOk:
      break;
    case NodeMapping::Outcome::kOutOfMemory:
      return cuda::CUDA_ERROR_OUT_OF_MEMORY;
    case NodeMapping::Outcome::kOperatingSystem:
      return cuda::CUDA_ERROR_OPERATING_SYSTEM;
  }
  const std::unique_lock lock(state.mutex);
  Region region;
  region.size = *rounded;
  region.gpu = gpu;
  region.origin = Origin::kAllocated;
  region.descriptor = chunk.get();
  const Address mapped = state.addresses.MapWhole(region, chunk.get());
  if (mapped == 0) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  static_cast<void>(chunk.Release());
  state.CountMapped(gpu, *rounded, true);
  *address = mapped;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemFree(cuda::CUdeviceptr address) {
  GPULEASE_ENTER(cuMemFree, GpuOfAddress(address), WhenLost::kServe);
  ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  const Region* at = state.addresses.At(address);
  if (at == nullptr || at->origin != Origin::kAllocated) return cuda::CUDA_ERROR_INVALID_VALUE;
  const Region region = *at;
  state.addresses.UnmapWhole(address);
  close(region.descriptor);
  state.CountMapped(region.gpu, region.size, false);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemGetAddressRange(cuda::CUdeviceptr* base, std::size_t* size,
                                    cuda::CUdeviceptr address) {
  GPULEASE_ENTER(cuMemGetAddressRange, GpuOfAddress(address));
  ProcessState& state = State();
  const std::shared_lock lock(state.mutex);
  Address start = 0;
  const Region* const region = state.addresses.Find(address, &start);
  if (region == nullptr) return cuda::CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = start;
  if (size != nullptr) *size = region->size;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  const int gpu = CurrentGpu();
  GPULEASE_ENTER(cuMemGetInfo, gpu);
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (free == nullptr || total == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  const NodeMapping& node = *State().node.load();
  const GpuRecord& record = node.file->gpus[gpu];
  const Bytes used = node.Recorded(gpu) + record.outside.load();
  *total = record.capacity;
  *free = used < record.capacity ? record.capacity - used : 0;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemcpy(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::size_t size) {
  GPULEASE_ENTER(cuMemcpy, GpuOfAddress(to));
  return Copy(Either(to), Either(from), size);
}

cuda::CUresult cuMemcpyHtoD(cuda::CUdeviceptr to, const void* from, std::size_t size) {
  GPULEASE_ENTER(cuMemcpyHtoD, GpuOfAddress(to));
  return Copy(Device(to), Host(from), size);
}

cuda::CUresult cuMemcpyDtoH(void* to, cuda::CUdeviceptr from, std::size_t size) {
  GPULEASE_ENTER(cuMemcpyDtoH, GpuOfAddress(from));
  return Copy(Host(to), Device(from), size);
}

cuda::CUresult cuMemcpyDtoD(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::size_t size) {
  GPULEASE_ENTER(cuMemcpyDtoD, GpuOfAddress(to));
  return Copy(Device(to), Device(from), size);
}

cuda::CUresult cuMemcpyHtoDAsync(cuda::CUdeviceptr to, const void* from, std::size_t size,
                                 cuda::CUstream) {
  GPULEASE_ENTER(cuMemcpyHtoDAsync, GpuOfAddress(to));
  return Copy(Device(to), Host(from), size);
}

cuda::CUresult cuMemcpyDtoHAsync(void* to, cuda::CUdeviceptr from, std::size_t size,
                                 cuda::CUstream) {
  GPULEASE_ENTER(cuMemcpyDtoHAsync, GpuOfAddress(from));
  return Copy(Host(to), Device(from), size);
}

cuda::CUresult cuMemcpyDtoDAsync(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::size_t size,
                                 cuda::CUstream) {
  GPULEASE_ENTER(cuMemcpyDtoDAsync, GpuOfAddress(to));
  return Copy(Device(to), Device(from), size);
}

cuda::CUresult cuMemsetD8(cuda::CUdeviceptr to, unsigned char value, std::size_t count) {
  GPULEASE_ENTER(cuMemsetD8, GpuOfAddress(to));
  if (CurrentGpu() < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (count == 0) return cuda::CUDA_SUCCESS;
  ProcessState& state = State();
  const std::shared_lock lock(state.mutex);
  const cuda::CUresult bad = CheckSide(state, Device(to), count, true);
  if (bad != cuda::CUDA_SUCCESS) return bad;
  std::memset(reinterpret_cast<void*>(to), value, count);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuMemsetD32(cuda::CUdeviceptr to, unsigned int value, std::size_t count) {
  GPULEASE_ENTER(cuMemsetD32, GpuOfAddress(to));
  if (CurrentGpu() < 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (count == 0) return cuda::CUDA_SUCCESS;
  if (to % sizeof value != 0 || count > ~std::size_t{0} / sizeof value) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  ProcessState& state = State();
  const std::shared_lock lock(state.mutex);
  const cuda::CUresult bad = CheckSide(state, Device(to), count * sizeof value, true);
  if (bad != cuda::CUDA_SUCCESS) return bad;
  unsigned int* words = reinterpret_cast<unsigned int*>(to);
  for (std::size_t i = 0; i < count; ++i) words[i] = value;
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpulease
