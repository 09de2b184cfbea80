// SPDX-License-Identifier: Apache-2.0
//
// A pool that is lost: everything on it ends, and nobody waits for it any more.
#include <algorithm>

#include "daemon/ledger/impl.h"

namespace gpulease::ledger {

void Ledger::Impl::LosePool(PoolIndex index, std::string_view message, Time now, Effects& effects) {
  if (index >= pools.size()) return;
  SetPoolUsable(index, false, message, now, effects);
  pools[index].lost = true;
  std::vector<GroupId> waiting;
  for (const auto& [deadline, id] : waits) waiting.push_back(id);
  for (const GroupId id : waiting) {
    Group& group = groups.at(id);
    if (!group.wait->pools[index] || Reachable(group.wait->pieces, pools)) continue;
    FailQueued(group, NoUsablePool(group.wait->pieces, pools), effects);
  }
  std::vector<LeaseId> ending;
  for (const auto& [id, record] : leases) {
    if (record.lease.pool == index) ending.push_back(id);
  }
  for (const LeaseId id : ending) {
    // A growth may have gone with its lease.
    if (LeaseRecord* record = FindLease(id)) LoseLease(*record, effects);
  }
  Serve(now, effects);
}

void Ledger::Impl::LoseLease(LeaseRecord& record, Effects& effects) {
  const PoolAccount& pool = *record.charge.pool();
  if (record.lease.state == State::kMaking) {
    // All pieces of the request or none; the executor reports when it has let go of the chunks.
    if (!record.group->cancelled) {
      CancelMaking(*record.group, DeviceLost(record.lease.id, pool.spec.name, pool.message),
                   effects);
    }
    return;
  }
  std::vector<SessionId> told = HolderSessions(record);
  if (const SessionId owner = record.lease.owner;
      owner && std::find(told.begin(), told.end(), owner) == told.end())
    told.push_back(owner);
  for (const SessionId holder : HolderSessions(record)) RemoveHolding(record, holder);
  if (!told.empty()) {
    Emit(EventType::kDeviceLost, record, std::move(told), effects);
    effects.back().error = DeviceLost(record.lease.id, pool.spec.name, pool.message);
    effects.back().message = pool.message;
  }
  if (record.lease.state < State::kDestroying) {
    Effect& destroy = effects.emplace_back(Effect{.kind = Effect::Kind::kDestroy});
    destroy.lease = record.lease.id;
    destroy.group = record.lease.group;
    destroy.pool = record.lease.pool;
  }
  EraseLease(record, effects);
}

}  // namespace gpulease::ledger
