// SPDX-License-Identifier: Apache-2.0
//
// PoolAccount: the bytes of one GPU or NUMA node by what they are used for.
//
// Only a Charge writes the columns; everything else here is read from them.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "daemon/ledger/ledger.h"

namespace gpulease::ledger {

// 16 GPUs of 7 slices each are 112 pools, machines with more than 100 NUMA nodes are not for sale.
inline constexpr std::size_t kMostPools = 256;
using PoolSet = std::bitset<kMostPools>;

// What a charged lease's bytes are in the books.
enum class Column : std::uint8_t {
  kMaking,
  kOffered,
  kLeased,
  kDestroying,
  kReleasing,
  kUnconfirmed,
  kQuarantinedOpen,   // the daemon still has the descriptors
  kQuarantinedClosed  // it has not
};
inline constexpr std::size_t kColumns = 8;

// `state` is not kQueued.
Column ColumnOf(State state, bool quarantined);

struct PoolAccount {
  PoolSpec spec;
  PoolIndex index = kNoPool;
  std::array<Bytes, kColumns> columns{};
  Bytes outside = 0;
  Bytes baseline = 0;  // `outside` when nothing was pending for the last time
  bool usable = true;
  bool lost = false;    // nobody shows what is free there
  std::string message;  // why it is not usable
  std::uint32_t leases = 0;
  std::uint32_t queued = 0;  // groups that wait for it
  std::uint32_t shorts = 0;  // groups that wait for an observation: the driver had no memory
  std::uint64_t chunks = 0;  // that the daemon has open or is making
  std::set<std::pair<Bytes, LeaseId>> by_size;  // charged leases, for Blockers
  std::map<std::uint64_t, LeaseId> closed;      // pending leases, the oldest first

  Bytes column(Column c) const { return columns[static_cast<std::size_t>(c)]; }
  Bytes Charged() const;
  // Of leases whose memory the daemon has open: the driver shows them as used.
  Bytes Live() const;
  // Of leases that the daemon closed and the driver may still show.
  Bytes Pending() const;
  // Released, and as a rule free within milliseconds.
  Bytes OnItsWay() const { return column(Column::kDestroying) + column(Column::kReleasing); }
  Bytes Free() const;
  Bytes Overcommitted() const;
  // What may be leased of what is free.
  Bytes Grantable() const;
  // What could ever be leased.
  Bytes Capacity() const {
    return spec.total > spec.headroom ? spec.total - spec.headroom : Bytes{0};
  }
  PoolUse Use() const;

  std::optional<Bytes> Rounded(Bytes size) const { return RoundUp(size, spec.granularity); }
  // Of a lease of `size` rounded bytes; `whole`: in one chunk, however large.
  std::uint64_t ChunkCount(Bytes size, bool whole) const;
  std::vector<Bytes> ChunkSizes(Bytes size, bool whole) const;
};

}  // namespace gpulease::ledger
