// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA driver's binary interface (cuda.h of CUDA 12 and 13) that gpulease uses,
// declared anew so that building needs no CUDA Toolkit. Names, values and layouts are cuda.h's own;
// tests/unit/driver_abi_test.cc holds them against the Toolkit's header where there is one.
//
// It declares and never defines: functions are members of CudaDriver, found at run time.
#pragma once

#include <cstddef>

namespace gpulease::cuda {

// Every result of the driver, by cuda.h's name and number. A newer driver may return others: the
// type has a fixed width so that they are values too.
// clang-format off
#define GPULEASE_CUDA_RESULTS(X)                                                                   \
  X(CUDA_SUCCESS, 0, "no error")                                                                   \
  X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                               \
  X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                                  \
  X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error")                                         \
  X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down")                                           \
  X(CUDA_ERROR_STUB_LIBRARY, 34, "CUDA driver is a stub library")                                  \
  X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "CUDA-capable device(s) is/are busy or unavailable")        \
  X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                               \
  X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                                      \
  X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")                                     \
  X(CUDA_ERROR_MAP_FAILED, 205, "mapping of buffer object failed")                                 \
  X(CUDA_ERROR_ALREADY_MAPPED, 208, "resource already mapped")                                     \
  X(CUDA_ERROR_NOT_MAPPED, 211, "resource not mapped")                                             \
  X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error encountered")                      \
  X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220,                                                          \
    "uncorrectable NVLink error detected during the execution")                                    \
  X(CUDA_ERROR_CONTAINED, 226,                                                                     \
    "an error was contained: the process can start anew")                                          \
  X(CUDA_ERROR_OPERATING_SYSTEM, 304, "OS call failed or operation not supported on this OS")      \
  X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")                                     \
  X(CUDA_ERROR_ILLEGAL_STATE, 401, "the operation cannot be performed in the present state")       \
  X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                                           \
  X(CUDA_ERROR_NOT_READY, 600, "device not ready")                                                 \
  X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")                   \
  X(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated")                     \
  X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705, "peer access has not been enabled")                   \
  X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                                  \
  X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712,                                                \
    "part or all of the requested memory range is already mapped")                                 \
  X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713,                                                    \
    "pointer does not correspond to a registered memory region")                                   \
  X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error")                                  \
  X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                                   \
  X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted")                                      \
  X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported")                                      \
  X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "system not yet initialized")                                \
  X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803,                                                        \
    "system has unsupported display driver / cuda driver combination")                             \
  X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804,                                                \
    "forward compatibility was attempted on non supported HW")                                     \
  X(CUDA_ERROR_UNKNOWN, 999, "unknown error")
// clang-format on

enum CUresult : unsigned int {
#define GPULEASE_CUDA_RESULT(name, value, text) name = value,
  GPULEASE_CUDA_RESULTS(GPULEASE_CUDA_RESULT)
#undef GPULEASE_CUDA_RESULT
};

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUmemGenericAllocationHandle = unsigned long long;

struct CUuuid {
  char bytes[16];
};

struct CUipcMemHandle {
  char reserved[64];
};

struct CUipcEventHandle {
  char reserved[64];
};

enum CUdevice_attribute : unsigned int {
  CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
  CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19,
  CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
  CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
  CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,
};

enum CUcomputemode : unsigned int {
  CU_COMPUTEMODE_DEFAULT = 0,
  CU_COMPUTEMODE_PROHIBITED = 2,
  CU_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
};

enum CUmemAllocationType : unsigned int {
  CU_MEM_ALLOCATION_TYPE_INVALID = 0,
  CU_MEM_ALLOCATION_TYPE_PINNED = 1,
};

enum CUmemAllocationHandleType : unsigned int {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_HANDLE_TYPE_FABRIC = 8,
};

enum CUmemLocationType : unsigned int {
  CU_MEM_LOCATION_TYPE_INVALID = 0,
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEM_LOCATION_TYPE_HOST = 2,
  CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
};

enum CUmemAccess_flags : unsigned int {
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};

enum CUmemAllocationGranularity_flags : unsigned int {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
};

struct CUmemLocation {
  CUmemLocationType type;
  int id;
};

struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};

struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};

// cuda.h has these as macros; a C++ name of ours cannot be the same.
inline constexpr unsigned int kIpcMemLazyEnablePeerAccess = 1;
inline constexpr unsigned int kMemHostRegisterPortable = 1;
inline constexpr unsigned int kMemHostRegisterDeviceMap = 2;
inline constexpr unsigned int kMemHostRegisterReadOnly = 8;
inline constexpr unsigned int kStreamDefault = 0;
inline constexpr unsigned int kStreamNonBlocking = 1;
inline constexpr unsigned int kEventDefault = 0;
inline constexpr unsigned int kEventBlockingSync = 1;
inline constexpr unsigned int kEventDisableTiming = 2;
inline constexpr unsigned int kEventInterprocess = 4;

}  // namespace gpulease::cuda
