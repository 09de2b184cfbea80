// SPDX-License-Identifier: Apache-2.0
//
// Libraries that are no driver for gpulease: with STUB_VERSION one of that CUDA version that has
// nothing else, with STUB_FOREIGN one that is something else altogether.
#define STUB_EXPORT extern "C" __attribute__((visibility("default")))

#ifdef STUB_FOREIGN
STUB_EXPORT int something_else() { return 0; }
#else
STUB_EXPORT const char* gpulease_simulated_use(const char*) { return nullptr; }
STUB_EXPORT unsigned int cuDriverGetVersion(int* version) {
  *version = STUB_VERSION;
  return 0;
}
STUB_EXPORT unsigned int cuInit(unsigned int) { return 0; }
#endif
