// SPDX-License-Identifier: Apache-2.0
//
// What libgpulease-simulated.so exports: the driver's functions by the symbols that libcuda.so.1
// and libnvidia-ml.so.1 export, with the signatures of the tables that the loader fills. A
// definition that differs does not compile.
#pragma once

#include <cstddef>

#include "driver/cuda_abi.h"
#include "driver/nvml_abi.h"

#define GPULEASE_EXPORT extern "C" __attribute__((visibility("default")))

namespace gpulease {

#define GPULEASE_CUDA_FUNCTION(name, symbol, ...) \
  GPULEASE_EXPORT cuda::CUresult name(__VA_ARGS__) __asm__(symbol);
#include "driver/cuda_functions.inc"
#undef GPULEASE_CUDA_FUNCTION

#define GPULEASE_NVML_FUNCTION(name, required, type, ...) GPULEASE_EXPORT type name(__VA_ARGS__);
#include "driver/nvml_functions.inc"
#undef GPULEASE_NVML_FUNCTION

// Says which node to serve, before cuInit or nvmlInit_v2; the last word counts. nullptr, or why
// not (valid until the thread's next call).
GPULEASE_EXPORT const char* gpulease_simulated_use(const char* directory);

}  // namespace gpulease
