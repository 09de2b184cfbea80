// SPDX-License-Identifier: Apache-2.0
//
// Memory that is lost: with a pool everything on it ends, and nobody waits for it any more; with
// the process that had it, one lease.
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
    if (LeaseRecord* record = FindLease(id)) LoseWithPool(*record, effects);
  }
  Serve(now, effects);
}

void Ledger::Impl::LoseWithPool(LeaseRecord& record, Effects& effects) {
  const PoolAccount& pool = *record.charge.pool();
  if (record.lease.state == State::kMaking) {
    // All pieces of the request or none; the executor reports when it has let go of the chunks.
    if (!record.group->cancelled) {
      CancelMaking(*record.group, DeviceLost(record.lease.id, pool.spec.name, pool.message),
                   effects);
    }
    return;
  }
  TellLost(record, DeviceLost(record.lease.id, pool.spec.name, pool.message), pool.message,
           effects);
  for (const SessionId holder : HolderSessions(record)) RemoveHolding(record, holder);
  if (record.lease.state < State::kDestroying) {
    Effect& destroy = effects.emplace_back(Effect{.kind = Effect::Kind::kDestroy});
    destroy.lease = record.lease.id;
    destroy.group = record.lease.group;
    destroy.pool = record.lease.pool;
  }
  EraseLease(record, effects);
}

void Ledger::Impl::LoseLease(LeaseId id, std::string_view message, Time now, Effects& effects) {
  LeaseRecord* record = FindLease(id);
  if (record == nullptr || record->lease.state < State::kOffered ||
      record->lease.state >= State::kDestroying)
    return;
  TellLost(*record, MemoryLost(id, message), message, effects);
  for (const SessionId holder : HolderSessions(*record)) {
    Expose(*record, holder);
    RemoveHolding(*record, holder);
  }
  StopLasting(*record);
  DropOwner(*record, effects);
  Settle(*record, now, effects);
  Serve(now, effects);
}

void Ledger::Impl::TellLost(const LeaseRecord& record, Error error, std::string_view message,
                            Effects& effects) const {
  std::vector<SessionId> told = HolderSessions(record);
  if (const SessionId owner = record.lease.owner;
      owner && std::find(told.begin(), told.end(), owner) == told.end())
    told.push_back(owner);
  if (told.empty()) return;
  Emit(EventType::kDeviceLost, record, std::move(told), effects);
  effects.back().error = std::move(error);
  effects.back().message = message;
}

}  // namespace gpulease::ledger
