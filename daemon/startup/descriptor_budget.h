// SPDX-License-Identifier: Apache-2.0
//
// DescriptorBudget: the daemon holds a descriptor for each chunk and several for each connection.
// What it may have in all is divided once, at start, so that the limit is never met by surprise:
// who would exceed a share is refused.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace gpulease::startup {

struct DescriptorBudget {
  std::uint32_t limit = 0;        // RLIMIT_NOFILE
  std::uint32_t connections = 0;  // at peers::Reception::kDescriptorsPerConnection each
  std::uint32_t chunks = 0;
};

// Raises the soft limit to the hard one and divides it.
//
// Errors: kFailedPrecondition/kDescriptorLimit when the hard limit is below 256; ErrnoError.
Result<DescriptorBudget> RaiseDescriptorLimit();

// The division of `limit` (at least 256): a fortieth, at least 64, for files of the daemon's own
// and for root's connections; of the rest 9/20 for connections, at most 16,384 of them; all else
// for chunks.
DescriptorBudget Divide(std::uint32_t limit);

}  // namespace gpulease::startup
