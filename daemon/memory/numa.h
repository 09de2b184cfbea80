// SPDX-License-Identifier: Apache-2.0
//
// What the kernel says of the machine's memory, node by node.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace gpulease::memory {

struct NumaNode {
  std::int32_t number = 0;
  Bytes total = 0;
};

// The nodes that have memory; one node 0 with all of it where the kernel tells none.
std::vector<NumaNode> NumaNodes();

// What could be had on the node now without swapping, this process's memory limit (cgroup)
// respected.
Bytes AvailableOnNode(std::int32_t node);

// Whether pages that are not locked could be written to swap.
bool HasSwap();

// Free 2 MiB pages of the node's pool, in bytes.
Bytes FreeHugePages(std::int32_t node);

}  // namespace gpulease::memory
