// SPDX-License-Identifier: Apache-2.0
#include "base/process_status.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace gpulease {
namespace {

// Whether /proc speaks of the PIDs that the kernel tells us.
bool ProcIsOurs() {
  char target[32] = {};
  return readlink("/proc/self", target, sizeof target - 1) > 0 && std::atoi(target) == getpid();
}

}  // namespace

std::optional<ProcessStatus> ReadProcessStatus(pid_t pid) {
  if (pid <= 0 || !ProcIsOurs()) return std::nullopt;
  std::ifstream stream("/proc/" + std::to_string(pid) + "/status");
  ProcessStatus status;
  bool has_user = false;
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "Uid:") {
      std::uint32_t real = 0;
      has_user = static_cast<bool>(words >> real >> status.uid);
    } else if (name == "NSpid:") {
      const auto count =
          std::distance(std::istream_iterator<long>(words), std::istream_iterator<long>());
      status.pid_namespaces = static_cast<std::size_t>(count);
    } else if (name == "CapEff:") {
      words >> std::hex >> status.effective_capabilities;
    } else if (name == "CapBnd:") {
      words >> std::hex >> status.bounding_capabilities;
    }
  }
  if (!has_user) return std::nullopt;
  return status;
}

}  // namespace gpulease
