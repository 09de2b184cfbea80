// SPDX-License-Identifier: Apache-2.0
//
// Libraries that are no driver for gpulease: with STUB_VERSION one of that CUDA version that has
// nothing else, with STUB_FOREIGN one that is something else altogether.
#include "driver/cuda_abi.h"

#define STUB_EXPORT extern "C" __attribute__((visibility("default")))

#ifdef STUB_FOREIGN
STUB_EXPORT int something_else() { return 0; }
#else
STUB_EXPORT const char* gpulease_simulated_use(const char*) { return nullptr; }
STUB_EXPORT gpulease::cuda::CUresult cuDriverGetVersion(int* version) {
  *version = STUB_VERSION;
  return gpulease::cuda::CUDA_SUCCESS;
}
STUB_EXPORT gpulease::cuda::CUresult cuInit(unsigned int) { return gpulease::cuda::CUDA_SUCCESS; }
#endif
