// SPDX-License-Identifier: Apache-2.0
//
// Initialisation, errors in words, and what the GPUs are.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver/simulated/exports.h"
#include "driver/simulated/process_state.h"

namespace gpulease {

using namespace simulated;  // NOLINT: the functions must lie in gpulease to be exports.h's

namespace {

// As snprintf does: cut to what fits, ended by a NUL.
void CopyText(std::string_view from, char* to, int length) {
  const std::size_t size = std::min(from.size(), static_cast<std::size_t>(length - 1));
  std::memcpy(to, from.data(), size);
  to[size] = '\0';
}

}  // namespace

cuda::CUresult cuInit(unsigned int flags) {
  ProcessState& state = State();
  if (flags != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (state.forked.load() || state.node.load() == nullptr) return cuda::CUDA_ERROR_NOT_INITIALIZED;
  NodeFile& file = *state.node.load()->file;
  if (file.armed.load(std::memory_order_relaxed) != 0) {
    const Meeting meeting = MeetFaults(file, FunctionId("cuInit"), -1);
    if (meeting.code.has_value()) return static_cast<cuda::CUresult>(*meeting.code);
  }
  if (state.ordinals() == 0) return cuda::CUDA_ERROR_NO_DEVICE;
  state.cuda_ready.store(true, std::memory_order_release);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  *version = 13000;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuGetErrorName(cuda::CUresult error, const char** text) {
  switch (error) {
#define GPULEASE_CUDA_RESULT(name, value, words) \
  case cuda::name:                               \
    *text = #name;                               \
    return cuda::CUDA_SUCCESS;
    GPULEASE_CUDA_RESULTS(GPULEASE_CUDA_RESULT)
#undef GPULEASE_CUDA_RESULT
  }
  *text = nullptr;
  return cuda::CUDA_ERROR_INVALID_VALUE;
}

cuda::CUresult cuGetErrorString(cuda::CUresult error, const char** text) {
  switch (error) {
#define GPULEASE_CUDA_RESULT(name, value, words) \
  case cuda::name:                               \
    *text = words;                               \
    return cuda::CUDA_SUCCESS;
    GPULEASE_CUDA_RESULTS(GPULEASE_CUDA_RESULT)
#undef GPULEASE_CUDA_RESULT
  }
  *text = nullptr;
  return cuda::CUDA_ERROR_INVALID_VALUE;
}

cuda::CUresult cuDeviceGetCount(int* count) {
  GPULEASE_ENTER(cuDeviceGetCount, -1);
  if (count == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  *count = State().ordinals();
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuDeviceGet(cuda::CUdevice* device, int ordinal) {
  const int gpu = State().GpuOf(ordinal);
  GPULEASE_ENTER(cuDeviceGet, gpu, WhenLost::kServe);
  if (device == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuDeviceGetName(char* name, int length, cuda::CUdevice device) {
  const int gpu = State().GpuOf(device);
  GPULEASE_ENTER(cuDeviceGetName, gpu, WhenLost::kServe);
  if (name == nullptr || length <= 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
  CopyText("Simulated GPU", name, length);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuDeviceGetUuid(cuda::CUuuid* uuid, cuda::CUdevice device) {
  const int gpu = State().GpuOf(device);
  GPULEASE_ENTER(cuDeviceGetUuid, gpu, WhenLost::kServe);
  if (uuid == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
  *uuid = NodeUuid(*State().node.load()->file, gpu);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuDeviceTotalMem(std::size_t* bytes, cuda::CUdevice device) {
  const int gpu = State().GpuOf(device);
  GPULEASE_ENTER(cuDeviceTotalMem, gpu);
  if (bytes == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
  *bytes = State().node.load()->file->gpus[gpu].capacity;
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuDeviceGetAttribute(int* value, cuda::CUdevice_attribute attribute,
                                    cuda::CUdevice device) {
  const int gpu = State().GpuOf(device);
  GPULEASE_ENTER(cuDeviceGetAttribute, gpu, WhenLost::kServe);
  if (value == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case cuda::CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      *value = 32;
      break;
    case cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      break;
    case cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case cuda::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case cuda::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case cuda::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case cuda::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case cuda::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *value = 1;
      break;
    case cuda::CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
    case cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    case cuda::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case cuda::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      *value = 0;
      break;
    default:
      return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuDeviceGetPCIBusId(char* text, int length, cuda::CUdevice device) {
  const int gpu = State().GpuOf(device);
  GPULEASE_ENTER(cuDeviceGetPCIBusId, gpu, WhenLost::kServe);
  if (text == nullptr || length <= 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (gpu < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
  char id[16];
  std::snprintf(id, sizeof id, "0000:%02x:00.0", 0x10 + gpu);
  CopyText(id, text, length);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult cuDeviceCanAccessPeer(int* can, cuda::CUdevice device, cuda::CUdevice peer) {
  GPULEASE_ENTER(cuDeviceCanAccessPeer, State().GpuOf(device), WhenLost::kServe);
  if (can == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (State().GpuOf(device) < 0 || State().GpuOf(peer) < 0) return cuda::CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer ? 1 : 0;
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpulease
