// SPDX-License-Identifier: Apache-2.0
//
// Identities of the ledger: numbers of their own types, so that a session is never taken for a
// lease.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace gpulease::ledger {

// A number below 2^53, drawn so that it cannot be guessed from another, never 0 and never used
// twice. 0: none.
template <typename Tag>
struct Id {
  std::uint64_t value = 0;
  explicit operator bool() const { return value != 0; }
  friend auto operator<=>(Id, Id) = default;
};

using SessionId = Id<struct SessionTag>;
using LeaseId = Id<struct LeaseTag>;
// Leases that are granted together or not at all.
using GroupId = Id<struct GroupTag>;

// One GPU, or the host memory of one NUMA node: an index into the pools that the ledger was made
// with.
using PoolIndex = std::uint32_t;
inline constexpr PoolIndex kNoPool = ~PoolIndex{0};

}  // namespace gpulease::ledger

template <typename Tag>
struct std::hash<gpulease::ledger::Id<Tag>> {
  std::size_t operator()(gpulease::ledger::Id<Tag> id) const noexcept {
    return std::hash<std::uint64_t>()(id.value);
  }
};
