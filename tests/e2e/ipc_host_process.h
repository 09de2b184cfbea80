// SPDX-License-Identifier: Apache-2.0
//
// The processes that have memory with IPC handles for a daemon, which starts them and leaves them.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace gpulease::e2e {

// Those of the daemon in `runtime_dir` that run; of one GPU, where one is named.
std::vector<pid_t> IpcHosts(const std::string& runtime_dir, const std::string& gpu_uuid = "");

}  // namespace gpulease::e2e
