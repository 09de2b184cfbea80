// SPDX-License-Identifier: Apache-2.0
//
// Machine: what there is to lease: the driver, its GPUs, the NUMA nodes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/broker/broker.h"
#include "daemon/settings/settings.h"

namespace gpulease::startup {

struct Machine {
  std::shared_ptr<const driver::CudaDriver> cuda;  // null: no driver
  std::shared_ptr<const driver::NvmlDriver> nvml;
  std::vector<broker::Pool> pools;
  std::vector<driver::GpuDescription> unsupported;
  std::vector<std::string> warnings;  // for the log
  std::string driver_version;
  std::string simulated_directory;  // empty: real GPUs
  // An exported chunk that is never closed: exporting takes 35 µs while another exported descriptor
  // of the process is open and 1.1 ms while none is (H200, driver 580).
  UniqueFd anchor;
};

// Finds them; with settings.simulate, makes the simulated node in `directory`/simulated. Without a
// driver there is host memory alone, and a warning that says so.
//
// Errors: kInvalidArgument for a bad simulate spec; those of DescribeGpus.
Result<Machine> FindMachine(const settings::Settings& settings, const std::string& directory);

}  // namespace gpulease::startup
