// SPDX-License-Identifier: Apache-2.0
//
// Expectation: which GPUs the configuration says that the node has, held against those that are
// there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/settings/settings.h"

namespace gpulease::startup {

// What is expected and not there.
struct Absentees {
  std::vector<std::string> uuids;
  std::uint32_t unnamed = 0;  // as many more are missing from expected_gpu_count

  bool none() const { return uuids.empty() && unnamed == 0; }
  // "GPU-…, GPU-… and 2 more".
  std::string Text() const;
  friend bool operator==(const Absentees&, const Absentees&) = default;
};

// `present` are the UUIDs of the GPUs that are there or are retired.
Absentees FindAbsentees(const settings::Settings& settings,
                        const std::vector<std::string>& present);

// Whether the daemon has nothing to do without a driver.
bool WantsDriver(const settings::Settings& settings);

}  // namespace gpulease::startup
