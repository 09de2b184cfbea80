// SPDX-License-Identifier: Apache-2.0
//
// ProcessStatus: what the kernel lets everybody read of every process (/proc/PID/status), in the
// view of this process's PID namespace. It may not say which namespaces a process of another user
// is in; how many PID namespaces it is in, it says.
//
// A pid may be another process's by the time that it is read: who has a pidfd looks afterwards
// whether its process lives.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace gpulease {

struct ProcessStatus {
  std::uint32_t uid = 0;  // effective
  // From this process's own on: 1 is the same, more are below, as of a container.
  std::size_t pid_namespaces = 1;
  std::uint64_t effective_capabilities = 0;
  std::uint64_t bounding_capabilities = 0;
};

// Empty when there is no such process, when pid is 0 (none that can be seen from here), when /proc
// hides it, or when /proc is of another PID namespace.
std::optional<ProcessStatus> ReadProcessStatus(pid_t pid);

}  // namespace gpulease
