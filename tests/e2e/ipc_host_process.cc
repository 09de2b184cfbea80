// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/ipc_host_process.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace gpulease::e2e {

std::vector<pid_t> IpcHosts(const std::string& runtime_dir, const std::string& gpu_uuid) {
  const std::string socket = "--socket=" + runtime_dir + "/ipc-" + gpu_uuid;
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    // Empty for a process that has ended and was not waited for.
    std::ifstream file(entry.path() / "cmdline");
    std::stringstream line;
    line << file.rdbuf();
    const std::string text = line.str();
    if (text.starts_with("gpulease-ipc-host") && text.find(socket) != std::string::npos)
      found.push_back(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}

}  // namespace gpulease::e2e
