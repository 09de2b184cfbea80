// SPDX-License-Identifier: Apache-2.0
//
// CudaProcess: CUDA as this process sees it: the loaded driver, and which ordinal a GPU has here
// (CUDA_VISIBLE_DEVICES renumbers and hides them).
//
// Loaded once per process and driver, on first need, and never before: cuInit takes its time, and a
// process that has called it cannot use CUDA after a fork.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/handle_protocol.h"
#include "base/result.h"
#include "driver/cuda_driver.h"

namespace gpulease {

// The driver that the daemon says its GPUs have.
driver::DriverChoice DriverOf(const handle::Welcome& welcome);

class CudaProcess {
 public:
  // Errors: those of CudaDriver::Load. A failure is tried again by the next call.
  static Result<std::shared_ptr<const CudaProcess>> Get(const driver::DriverChoice& choice);
  // Only when Get() has been successful before.
  static std::shared_ptr<const CudaProcess> IfLoaded(const driver::DriverChoice& choice);
  // Whether the calling thread has a current context. Neither loads nor initialises anything.
  static bool ThreadHasContext(const driver::DriverChoice& choice);

  const driver::CudaDriver& cuda() const { return *cuda_; }
  // -1: not visible here.
  int Ordinal(const std::string& uuid) const;
  // The ordinal, or kFailedPrecondition/kNoSuchGpu that says what hides the GPU.
  Result<int> VisibleOrdinal(const std::string& uuid) const;

 private:
  CudaProcess() = default;
  std::shared_ptr<const driver::CudaDriver> cuda_;
  std::vector<std::string> uuids_;  // by ordinal
};

}  // namespace gpulease
