// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/expectation.h"

#include <algorithm>

namespace gpulease::startup {

std::string Absentees::Text() const {
  std::string text;
  for (const std::string& uuid : uuids) text += (text.empty() ? "" : ", ") + uuid;
  if (unnamed == 0) return text;
  if (text.empty()) return std::to_string(unnamed) + (unnamed == 1 ? " GPU" : " GPUs");
  return text + " and " + std::to_string(unnamed) + " more";
}

Absentees FindAbsentees(const settings::Settings& settings,
                        const std::vector<std::string>& present) {
  Absentees absentees;
  for (const std::string& uuid : settings.expected_gpus) {
    if (std::find(present.begin(), present.end(), uuid) == present.end())
      absentees.uuids.push_back(uuid);
  }
  const std::size_t known = present.size() + absentees.uuids.size();
  const std::uint32_t count = settings.expected_gpu_count.value_or(0);
  if (count > known) absentees.unnamed = count - static_cast<std::uint32_t>(known);
  return absentees;
}

bool WantsDriver(const settings::Settings& settings) { return settings.expected_gpu_count != 0u; }

}  // namespace gpulease::startup
