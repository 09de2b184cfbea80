// SPDX-License-Identifier: Apache-2.0
//
// What the driver and the kernel show, set against the books.
#include <algorithm>

#include "daemon/ledger/impl.h"

namespace gpulease::ledger {

void Ledger::Impl::FreeBytes(LeaseRecord& record, Bytes bytes, Effects& effects) {
  if (bytes >= record.lease.unconfirmed_size) {
    EraseLease(record, effects);
    return;
  }
  record.lease.unconfirmed_size -= bytes;
  record.charge.Shrink(bytes);
}

void Ledger::Impl::Observe(PoolIndex index, Bytes used, Time now, Effects& effects) {
  if (index >= pools.size()) return;
  PoolAccount& pool = pools[index];
  const Bytes live = pool.Live();
  const Bytes pending = pool.Pending();
  const Bytes beyond = used > live ? used - live : 0;
  if (pending == 0) {
    pool.baseline = beyond;
    pool.outside = beyond;
  } else {
    const Bytes above = beyond > pool.baseline ? beyond - pool.baseline : 0;
    const Bytes remaining = std::min(above, pending);
    for (Bytes free = pending - remaining; free > 0;) {
      LeaseRecord& oldest = *FindLease(pool.closed.begin()->second);
      const Bytes bytes = std::min(free, oldest.lease.unconfirmed_size);
      FreeBytes(oldest, bytes, effects);
      free -= bytes;
    }
    pool.outside = beyond - remaining;
    pool.baseline = std::min(pool.baseline, pool.outside);
  }
  if (pool.shorts > 0) {
    // Few: each waits for the driver after the ledger had room for it.
    queue.Walk([&](Group& group) {
      if (!group.wait->head) return false;
      if (group.wait->unobserved[index]) {
        group.wait->unobserved.reset(index);
        pool.shorts -= 1;
      }
      return pool.shorts > 0;
    });
  }
  Serve(now, effects);
}

void Ledger::Impl::ObserveLease(LeaseId lease, bool in_use, Time now, Effects& effects) {
  LeaseRecord* record = FindLease(lease);
  if (in_use || record == nullptr || record->closed_turn == 0) return;
  FreeBytes(*record, record->lease.unconfirmed_size, effects);
  Serve(now, effects);
}

void Ledger::Impl::SetPoolUsable(PoolIndex index, bool usable, std::string_view message, Time now,
                                 Effects& effects) {
  if (index >= pools.size()) return;
  PoolAccount& pool = pools[index];
  if (pool.usable == usable && pool.message == message) return;
  pool.usable = usable;
  if (usable) pool.lost = false;
  pool.message = message;
  Effect& event = effects.emplace_back(Effect{.kind = Effect::Kind::kEvent});
  event.event = EventType::kPoolState;
  event.pool = index;
  event.message = pool.message;
  Serve(now, effects);
}

}  // namespace gpulease::ledger
