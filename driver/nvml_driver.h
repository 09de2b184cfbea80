// SPDX-License-Identifier: Apache-2.0
//
// NvmlDriver: the part of NVML that gpulease asks: how much of a GPU's memory is used, its load,
// its health, and whose processes are on it. Loaded at run time like CudaDriver; a machine without
// it is served all the same.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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

// An error that the driver reports of a GPU, by the number that NVIDIA gave it.
struct Xid {
  std::string uuid;
  std::uint64_t number = 0;
};

class NvmlDriver;

// Xid errors of some GPUs, from when it was opened. One thread waits at a time.
class XidEvents {
 public:
  // GPUs whose events the driver does not tell are left out.
  // Errors: kFailedPrecondition/kUnsupported when those of none are told; kInternal/kDriver.
  static Result<XidEvents> Open(std::shared_ptr<const NvmlDriver> nvml,
                                const std::vector<std::string>& uuids);
  // The next one; nothing when there was none in that time.
  // Errors: kUnavailable/kGpuUnavailable when a GPU is lost; kInternal/kDriver.
  Result<std::optional<Xid>> Wait(std::chrono::milliseconds most);

 private:
  struct State;
  explicit XidEvents(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
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
  friend class XidEvents;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace gpulease::driver
