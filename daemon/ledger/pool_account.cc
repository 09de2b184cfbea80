// SPDX-License-Identifier: Apache-2.0
#include "daemon/ledger/pool_account.h"

#include <numeric>

namespace gpulease::ledger {

Column ColumnOf(State state, bool quarantined) {
  switch (state) {
    case State::kQueued:
    case State::kMaking:
      return Column::kMaking;
    case State::kOffered:
      return Column::kOffered;
    case State::kLeased:
    case State::kRevoking:
    case State::kReleased:
      return Column::kLeased;
    case State::kDestroying:
      return quarantined ? Column::kQuarantinedOpen : Column::kDestroying;
    case State::kReleasing:
      return quarantined ? Column::kQuarantinedClosed : Column::kReleasing;
    case State::kUnconfirmed:
      return quarantined ? Column::kQuarantinedClosed : Column::kUnconfirmed;
  }
  return Column::kMaking;
}

Bytes PoolAccount::Charged() const {
  return std::accumulate(columns.begin(), columns.end(), Bytes{0});
}

Bytes PoolAccount::Live() const {
  return column(Column::kOffered) + column(Column::kLeased) + column(Column::kDestroying) +
         column(Column::kQuarantinedOpen);
}

Bytes PoolAccount::Pending() const {
  return column(Column::kReleasing) + column(Column::kUnconfirmed) +
         column(Column::kQuarantinedClosed);
}

Bytes PoolAccount::Free() const {
  const Bytes taken = CheckedAdd(Charged(), outside).value_or(~Bytes{0});
  return spec.total > taken ? spec.total - taken : 0;
}

Bytes PoolAccount::Overcommitted() const {
  const Bytes taken = CheckedAdd(Charged(), outside).value_or(~Bytes{0});
  return taken > spec.total ? taken - spec.total : 0;
}

Bytes PoolAccount::Grantable() const {
  const Bytes free = Free();
  return free > spec.headroom ? free - spec.headroom : 0;
}

PoolUse PoolAccount::Use() const {
  PoolUse use;
  use.total = spec.total;
  use.free = Free();
  use.leased = column(Column::kLeased);
  use.offered = column(Column::kMaking) + column(Column::kOffered);
  use.releasing = column(Column::kDestroying) + column(Column::kReleasing);
  use.unconfirmed = column(Column::kUnconfirmed);
  use.quarantined = column(Column::kQuarantinedOpen) + column(Column::kQuarantinedClosed);
  use.outside = outside;
  use.overcommitted = Overcommitted();
  use.leases = leases;
  use.queued = queued;
  use.usable = usable;
  return use;
}

std::uint64_t PoolAccount::ChunkCount(Bytes size, bool whole) const {
  if (whole || spec.largest_chunk == 0) return 1;
  return size / spec.largest_chunk + (size % spec.largest_chunk != 0 ? 1 : 0);
}

std::vector<Bytes> PoolAccount::ChunkSizes(Bytes size, bool whole) const {
  if (whole) return {size};
  const std::uint64_t count = ChunkCount(size, false);
  std::vector<Bytes> sizes(count, spec.largest_chunk);
  sizes.back() = size - (count - 1) * spec.largest_chunk;
  return sizes;
}

}  // namespace gpulease::ledger
