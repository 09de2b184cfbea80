// SPDX-License-Identifier: Apache-2.0
//
// The part of NVML's binary interface that gpulease uses, declared anew like cuda_abi.h. Names,
// values and layouts are nvml.h's own.
#pragma once

namespace gpulease::nvml {

// clang-format off
#define GPULEASE_NVML_RESULTS(X)                                                  \
  X(NVML_SUCCESS, 0, "Success")                                                   \
  X(NVML_ERROR_UNINITIALIZED, 1, "Uninitialized")                                 \
  X(NVML_ERROR_INVALID_ARGUMENT, 2, "Invalid Argument")                           \
  X(NVML_ERROR_NOT_SUPPORTED, 3, "Not Supported")                                 \
  X(NVML_ERROR_NO_PERMISSION, 4, "Insufficient Permissions")                      \
  X(NVML_ERROR_NOT_FOUND, 6, "Not Found")                                         \
  X(NVML_ERROR_INSUFFICIENT_SIZE, 7, "Insufficient Size")                         \
  X(NVML_ERROR_DRIVER_NOT_LOADED, 9, "Driver Not Loaded")                         \
  X(NVML_ERROR_TIMEOUT, 10, "Timeout")                                            \
  X(NVML_ERROR_LIBRARY_NOT_FOUND, 12, "NVML Shared Library Not Found")            \
  X(NVML_ERROR_FUNCTION_NOT_FOUND, 13, "Function Not Found")                      \
  X(NVML_ERROR_GPU_IS_LOST, 15, "GPU is lost")                                    \
  X(NVML_ERROR_RESET_REQUIRED, 16, "GPU requires reset")                          \
  X(NVML_ERROR_OPERATING_SYSTEM, 17, "The operating system has blocked the request") \
  X(NVML_ERROR_LIB_RM_VERSION_MISMATCH, 18, "Driver/library version mismatch")    \
  X(NVML_ERROR_IN_USE, 19, "In use by another client")                            \
  X(NVML_ERROR_MEMORY, 20, "Insufficient Memory")                                 \
  X(NVML_ERROR_NO_DATA, 21, "No data")                                            \
  X(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, 25, "Argument version mismatch")        \
  X(NVML_ERROR_UNKNOWN, 999, "Unknown Error")
// clang-format on

enum nvmlReturn_t : unsigned int {
#define GPULEASE_NVML_RESULT(name, value, text) name = value,
  GPULEASE_NVML_RESULTS(GPULEASE_NVML_RESULT)
#undef GPULEASE_NVML_RESULT
};

using nvmlDevice_t = struct nvmlDevice_st*;

// used includes what the driver has reserved.
struct nvmlMemory_t {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

// used is without what the driver has reserved.
struct nvmlMemory_v2_t {
  unsigned int version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};
static_assert(sizeof(nvmlMemory_v2_t) == 40);
inline constexpr unsigned int kMemoryV2 = sizeof(nvmlMemory_v2_t) | (2u << 24);

struct nvmlUtilization_t {
  unsigned int gpu;
  unsigned int memory;
};

// Of nvmlDeviceGetComputeRunningProcesses_v2 and _v3.
struct nvmlProcessInfo_t {
  unsigned int pid;
  unsigned long long usedGpuMemory;
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
};
static_assert(sizeof(nvmlProcessInfo_t) == 24);
inline constexpr unsigned long long kValueNotAvailable = ~0ull;

using nvmlEventSet_t = struct nvmlEventSet_st*;
inline constexpr unsigned long long kEventTypeXidCriticalError = 8;

struct nvmlEventData_t {
  nvmlDevice_t device;
  unsigned long long eventType;
  unsigned long long eventData;  // of an Xid event, its number
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
};
static_assert(sizeof(nvmlEventData_t) == 32);

}  // namespace gpulease::nvml
