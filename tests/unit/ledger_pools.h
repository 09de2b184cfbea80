// SPDX-License-Identifier: Apache-2.0
//
// Pools for a ledger under test.
#pragma once

#include <string>
#include <utility>

#include "daemon/ledger/ledger.h"

namespace gpulease::ledger {

inline PoolSpec Gpu(std::string name, Bytes total, Bytes headroom = 0) {
  PoolSpec spec;
  spec.name = std::move(name);
  spec.total = total;
  spec.headroom = headroom;
  spec.granularity = 2 * kMiB;
  spec.largest_chunk = kGiB;
  return spec;
}

inline PoolSpec Node(std::string name, Bytes total) {
  PoolSpec spec;
  spec.kind = PoolKind::kHost;
  spec.name = std::move(name);
  spec.total = total;
  spec.granularity = 4 * kKiB;
  spec.largest_chunk = kGiB;
  return spec;
}

}  // namespace gpulease::ledger
