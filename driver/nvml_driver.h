// SPDX-License-Identifier: Apache-2.0
//
// NvmlDriver: the part of NVML that gpulease asks: how much of a GPU's memory is used, its load,
// its health, and whose processes are on it. Loaded at run time like CudaDriver; a machine without
// it is served all the same.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "driver/cuda_driver.h"

namespace gpulease::driver {

struct GpuMemory {
  Bytes total = 0;     // of the board
  Bytes reserved = 0;  // by the driver, not usable by anybody
  Bytes used = 0;      // by all processes, without `reserved`
};

struct GpuProcess {
  int pid = 0;
  Bytes used = 0;  // 0 when the driver does not say
};

// One loaded NVML. Usable from every thread. It is never unloaded.
class NvmlDriver {
 public:
  // Errors: as CudaDriver::Load.
  static Result<std::shared_ptr<const NvmlDriver>> Load(const DriverChoice& choice);

  // Each takes a GPU's UUID. Errors: kNotFound/kNoSuchGpu; kUnavailable/kGpuUnavailable when the
  // GPU is lost; kFailedPrecondition/kUnsupported; kInternal/kDriver.
  Result<GpuMemory> Memory(const std::string& uuid) const;
  Result<int> UtilizationPercent(const std::string& uuid) const;
  Result<std::vector<GpuProcess>> Processes(
      const std::string& uuid) const;  // with a compute context on it
  std::string driver_version() const;  // "580.159.04"

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace gpulease::driver
