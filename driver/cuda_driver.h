// SPDX-License-Identifier: Apache-2.0
//
// CudaDriver: the CUDA driver API as a table of functions, loaded at run time. Daemon and SDK call
// the driver through it and in no other way, so that the same binary drives real GPUs, simulated
// ones, and starts where there is neither.
//
// The members have the names and signatures of cuda.h (see driver/cuda_abi.h); a call looks like
// `cuda->cuMemCreate(&handle, size, &properties, 0)`. The table never creates a context by itself.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "driver/cuda_abi.h"

namespace gpulease::driver {

// Which driver to load.
struct DriverChoice {
  // Empty: the machine's own (libcuda.so.1, libnvidia-ml.so.1). Else the directory that describes a
  // simulated node (see driver/simulated/simulated.h), and the simulated driver is loaded.
  std::string simulated_directory;
};

// One loaded driver. Immutable after Load and usable from every thread. It is never unloaded.
class CudaDriver {
 public:
  // Loads the library, resolves every function and calls cuInit.
  //
  // Errors:
  //   kNotFound/kUnsupported            no such library: no NVIDIA driver is installed here (the
  //   message says where it
  //                                     was looked for and what helps).
  //   kFailedPrecondition/kUnsupported  the library lacks a function, or the driver is older than
  //   CUDA 12.0. kUnavailable/kDriver              cuInit failed: no device, or the kernel module
  //   is not loaded or does not match.
  static Result<std::shared_ptr<const CudaDriver>> Load(const DriverChoice& choice);

  // "cuMemCreate of 64.0 MiB on GPU-3f2a: CUDA_ERROR_OUT_OF_MEMORY (out of memory)" for `what` =
  // "cuMemCreate of …". The one place where a CUresult becomes an Error: out of memory is
  // kResourceExhausted/kDriverMemoryShort, a lost or faulted device kUnavailable/kGpuUnavailable,
  // operating-system failures at the descriptor limit kResourceExhausted/kDescriptorLimit, not
  // permitted or not supported kFailedPrecondition/kUnsupported, everything else kInternal/kDriver.
  Error MakeError(std::string_view what, cuda::CUresult result) const;

  bool simulated() const { return simulated_; }
  int version() const { return version_; }  // cuDriverGetVersion: 13000 is CUDA 13.0

#define GPULEASE_CUDA_FUNCTION(name, symbol, ...) cuda::CUresult (*name)(__VA_ARGS__) = nullptr;
#include "driver/cuda_functions.inc"
#undef GPULEASE_CUDA_FUNCTION

 private:
  CudaDriver() = default;
  bool simulated_ = false;
  int version_ = 0;
};

}  // namespace gpulease::driver
