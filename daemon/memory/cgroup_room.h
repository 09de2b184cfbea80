// SPDX-License-Identifier: Apache-2.0
//
// What the memory limits of this process's cgroup leave. Pinned memory is charged to it, and the
// kernel kills who goes past such a limit: the daemon looks before it makes any.
#pragma once

#include <string>

#include "base/bytes.h"

namespace gpulease::memory {

struct CgroupFiles {
  std::string membership = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
};

// The least that a limit of this process's cgroup, or of one above it as far as they are to be
// seen, leaves now: what was read from files and is not in use counts as free, for the kernel gives
// it up. Limits are memory.max and memory.high, where processes are slowed to a halt; or cgroup
// v1's. ~Bytes{0} where there is none.
Bytes CgroupRoom(const CgroupFiles& files = {});

}  // namespace gpulease::memory
