// SPDX-License-Identifier: Apache-2.0
//
// Holds driver/cuda_abi.h and driver/cuda_functions.inc against the Toolkit's cuda.h. Nearly all of
// it is checked by compiling it.
#include <gtest/gtest.h>

#include "driver/cuda_abi.h"

// cuda.h maps names to versioned ones by macros: ours are included first.
#include <cuda.h>

#include <cstddef>
#include <string>
#include <type_traits>

namespace gpulease {
namespace {

// Both are passed in the same way: the same kind of type, as large and aligned alike.
template <typename Ours, typename Theirs>
constexpr bool Alike() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    if constexpr (!std::is_pointer_v<Ours> || !std::is_pointer_v<Theirs>) {
      return false;
    } else {
      using OurTarget = std::remove_pointer_t<Ours>;
      using TheirTarget = std::remove_pointer_t<Theirs>;
      if constexpr (std::is_const_v<OurTarget> != std::is_const_v<TheirTarget>) {
        return false;
      } else if constexpr (std::is_void_v<OurTarget> || std::is_void_v<TheirTarget>) {
        return std::is_void_v<OurTarget> && std::is_void_v<TheirTarget>;
      } else if constexpr (std::is_class_v<OurTarget> && std::is_class_v<TheirTarget>) {
        return true;  // structs are compared below; handles point to structs that nobody defines
      } else {
        return Alike<std::remove_const_t<OurTarget>, std::remove_const_t<TheirTarget>>();
      }
    }
  } else if constexpr (std::is_class_v<Ours> || std::is_class_v<Theirs>) {
    return std::is_class_v<Ours> && std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
           alignof(Ours) == alignof(Theirs);
  } else {
    return std::is_enum_v<Ours> == std::is_enum_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
           std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct SameCall<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<Alike<OurResult, TheirResult>() && (Alike<Ours, Theirs>() && ...)> {
};

// Symbols first: in the argument of STRING the macros of cuda.h are at work.
#define STRING_OF(name) #name
#define STRING(name) STRING_OF(name)

// True when the header's macro leads to the symbol that is loaded.
bool IsSymbolOf(const std::string& mapped, const std::string& symbol) {
  // CUDA 13 maps it to one that a driver of CUDA 12 has not; the first stays exported.
  if (symbol == "cuEventElapsedTime" && mapped == "cuEventElapsedTime_v2") return true;
  return mapped == symbol;
}

TEST(CudaAbiTest, ResolvesTheSymbolsThatCudaHeaderMapsNamesTo) {
#define GPULEASE_CUDA_FUNCTION(name, symbol, ...) \
  EXPECT_TRUE(IsSymbolOf(STRING(name), symbol)) << STRING(name) << " is not " << symbol;
#include "driver/cuda_functions.inc"
#undef GPULEASE_CUDA_FUNCTION
}

TEST(CudaAbiTest, DeclaresFunctionsAsCudaHeaderDoes) {
#define GPULEASE_CUDA_FUNCTION(name, symbol, ...)                                    \
  static_assert(SameCall<cuda::CUresult (*)(__VA_ARGS__), decltype(&::name)>::value, \
                symbol " is declared otherwise in cuda.h");
#include "driver/cuda_functions.inc"
#undef GPULEASE_CUDA_FUNCTION
}

TEST(CudaAbiTest, NumbersResultsAsCudaHeaderDoes) {
#define SAME_RESULT(name, value, text) EXPECT_EQ(value, static_cast<int>(::name)) << #name;
  GPULEASE_CUDA_RESULTS(SAME_RESULT)
#undef SAME_RESULT
}

#define SAME(name) static_assert(static_cast<int>(cuda::name) == static_cast<int>(::name), #name)
SAME(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
SAME(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CU_DEVICE_ATTRIBUTE_INTEGRATED);
SAME(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
SAME(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
SAME(CU_COMPUTEMODE_DEFAULT);
SAME(CU_COMPUTEMODE_PROHIBITED);
SAME(CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
SAME(CU_MEM_ALLOCATION_TYPE_INVALID);
SAME(CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(CU_MEM_HANDLE_TYPE_NONE);
SAME(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(CU_MEM_HANDLE_TYPE_FABRIC);
SAME(CU_MEM_LOCATION_TYPE_INVALID);
SAME(CU_MEM_LOCATION_TYPE_DEVICE);
SAME(CU_MEM_LOCATION_TYPE_HOST);
SAME(CU_MEM_LOCATION_TYPE_HOST_NUMA);
SAME(CU_MEM_ACCESS_FLAGS_PROT_NONE);
SAME(CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
static_assert(cuda::kIpcMemLazyEnablePeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(cuda::kMemHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(cuda::kMemHostRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(cuda::kMemHostRegisterReadOnly == CU_MEMHOSTREGISTER_READ_ONLY);
static_assert(cuda::kStreamDefault == CU_STREAM_DEFAULT);
static_assert(cuda::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cuda::kEventDefault == CU_EVENT_DEFAULT);
static_assert(cuda::kEventBlockingSync == CU_EVENT_BLOCKING_SYNC);
static_assert(cuda::kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(cuda::kEventInterprocess == CU_EVENT_INTERPROCESS);

#define SAME_STRUCT(type)                                                                       \
  static_assert(sizeof(cuda::type) == sizeof(::type) && alignof(cuda::type) == alignof(::type), \
                #type)
#define SAME_FIELD(type, field)                                           \
  static_assert(offsetof(cuda::type, field) == offsetof(::type, field) && \
                    sizeof(static_cast<cuda::type*>(nullptr)->field) ==   \
                        sizeof(static_cast<::type*>(nullptr)->field),     \
                #type "." #field)
SAME_STRUCT(CUuuid);
SAME_STRUCT(CUipcMemHandle);
SAME_STRUCT(CUipcEventHandle);
SAME_STRUCT(CUmemLocation);
SAME_FIELD(CUmemLocation, type);
SAME_FIELD(CUmemLocation, id);
SAME_STRUCT(CUmemAccessDesc);
SAME_FIELD(CUmemAccessDesc, location);
SAME_FIELD(CUmemAccessDesc, flags);
SAME_STRUCT(CUmemAllocationProp);
SAME_FIELD(CUmemAllocationProp, type);
SAME_FIELD(CUmemAllocationProp, requestedHandleTypes);
SAME_FIELD(CUmemAllocationProp, location);
SAME_FIELD(CUmemAllocationProp, win32HandleMetaData);
SAME_FIELD(CUmemAllocationProp, allocFlags);
SAME_FIELD(CUmemAllocationProp, allocFlags.usage);
static_assert(std::is_same_v<cuda::CUdevice, ::CUdevice>);
static_assert(std::is_same_v<cuda::CUdeviceptr, ::CUdeviceptr>);
static_assert(std::is_same_v<cuda::CUmemGenericAllocationHandle, ::CUmemGenericAllocationHandle>);

}  // namespace
}  // namespace gpulease
