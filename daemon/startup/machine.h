// SPDX-License-Identifier: Apache-2.0
//
// Machine: what there is to lease: the driver, its GPUs, the NUMA nodes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/broker/broker.h"
#include "daemon/settings/settings.h"
#include "daemon/startup/continuation.h"

namespace gpulease::startup {

struct Machine {
  std::shared_ptr<const driver::CudaDriver> cuda;  // null: no driver, or none of its GPUs is served
  std::optional<Error> no_driver;                  // why the driver is not there
  std::shared_ptr<const driver::NvmlDriver> nvml;
  std::vector<broker::Pool> pools;
  std::vector<driver::GpuDescription> unsupported;
  std::vector<std::string> warnings;  // for the log
  std::string driver_version;
  std::string simulated_directory;  // empty: real GPUs
  std::string directory;            // of the sockets
  // An exported chunk that is never closed: exporting takes 35 µs while another exported descriptor
  // of the process is open and 1.1 ms while none is (H200, driver 580).
  UniqueFd anchor;

  // Of all GPUs that the driver shows.
  std::vector<std::string> Uuids() const;
};

// Has the driver, once it is loaded, show the GPUs of `continuation.served` alone where others are
// retired: by the environment, so before the first thread starts.
void LimitDriver(const Continuation& continuation);

// Finds them; with settings.simulate, makes the simulated node in `directory`/simulated. Without a
// driver there is host memory alone, and no_driver.
//
// Errors: kInvalidArgument for a bad simulate spec; those of making the simulated node.
Result<Machine> FindMachine(const settings::Settings& settings, const std::string& directory,
                            const Continuation& continuation);

}  // namespace gpulease::startup
