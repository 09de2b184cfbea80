// SPDX-License-Identifier: Apache-2.0
//
// Groups: queued, granted, made, or over.
#include <algorithm>

#include "daemon/ledger/impl.h"

namespace gpulease::ledger {

void Ledger::Impl::Enqueue(Group& group, bool first) {
  group.state = State::kQueued;
  if (first) {
    queue.AddFirst(group);
  } else {
    queue.Add(group);
  }
  waits.emplace(group.wait->deadline, group.id);
  group.session->user->waits += 1;
  for (PoolAccount& pool : pools) pool.queued += group.wait->pools[pool.index] ? 1 : 0;
}

void Ledger::Impl::Dequeue(Group& group) {
  queue.Remove(group);
  waits.erase({group.wait->deadline, group.id});
  group.session->user->waits -= 1;
  for (PoolAccount& pool : pools) {
    pool.queued -= group.wait->pools[pool.index] ? 1 : 0;
    pool.shorts -= group.wait->unobserved[pool.index] ? 1 : 0;
  }
  group.wait->unobserved.reset();
}

void Ledger::Impl::Grant(Group& group, const Placement& placement, Time now, Effects& effects) {
  group.state = State::kMaking;
  for (std::size_t i = 0; i < placement.size(); ++i) {
    LeaseRecord& record = *group.leases[i];
    PoolAccount& pool = pools[placement[i]];
    record.lease.pool = pool.index;
    record.lease.size = *pool.Rounded(record.lease.requested);
    record.lease.chunks = pool.ChunkSizes(record.lease.size, record.lease.ipc);
    record.charge = Charge(pool, *group.tenant, group.session, record.lease.id, record.lease.size,
                           record.lease.chunks.size());
    SetState(record, State::kMaking, now);
  }
  Effect& make = effects.emplace_back(Effect{.kind = Effect::Kind::kMake});
  make.group = group.id;
}

bool Ledger::Impl::Made(GroupId id, PageSize page_size, Time now, Effects& effects) {
  const auto found = groups.find(id);
  if (found == groups.end() || found->second.state != State::kMaking) return false;
  Group& group = found->second;
  group.state = State::kOffered;
  group.wait.reset();
  for (LeaseRecord* record : group.leases) {
    if (record->lease.kind == PoolKind::kHost) record->lease.page_size = page_size;
  }
  if (group.cancelled) {
    for (LeaseRecord* record : group.leases) StartDestroy(*record, now, effects);
    return false;
  }
  if (LeaseRecord& first = *group.leases.front(); first.lease.parent) {
    Merge(first, now, effects);
    return true;
  }
  for (LeaseRecord* record : group.leases) {
    SetState(*record, State::kOffered, now);
    AddHolding(*record, *group.session, Access::kReadWrite);
  }
  Effect& ready = effects.emplace_back(Effect{.kind = Effect::Kind::kReady});
  ready.group = id;
  ready.session = group.session->session.id;
  if (group.waited) {
    for (const LeaseRecord* record : group.leases)
      Emit(EventType::kGranted, *record, {record->lease.owner}, effects);
  }
  return true;
}

void Ledger::Impl::MakeFailed(GroupId id, const Error& error, Time now, Effects& effects) {
  const auto found = groups.find(id);
  if (found == groups.end() || found->second.state != State::kMaking) return;
  Group& group = found->second;
  if (group.cancelled) {
    EraseGroup(group, effects);
    Serve(now, effects);
    return;
  }
  if (error.reason != Reason::kDriverMemoryShort || stopping) {
    TellFailed(group, error, effects);
    EraseGroup(group, effects);
    Serve(now, effects);
    return;
  }
  Wait& wait = *group.wait;
  wait.shortage = error;
  if (wait.first_shortage == kNever) wait.first_shortage = now;
  wait.deadline = std::max(wait.deadline, After(wait.first_shortage, options.limits.driver_retry));
  for (LeaseRecord* record : group.leases) {
    const PoolIndex index = record->lease.pool;
    if (!wait.unobserved[index]) {
      wait.unobserved.set(index);
      pools[index].shorts += 1;
      Effect& observe = effects.emplace_back(Effect{.kind = Effect::Kind::kObserve});
      observe.pool = index;
    }
    record->charge = Charge();
    record->lease.pool = kNoPool;
    record->lease.chunks = {};
    SetState(*record, State::kQueued, now);
  }
  Enqueue(group, true);
  Serve(now, effects);
}

void Ledger::Impl::TellFailed(const Group& group, Error error, Effects& effects) const {
  Effect& failed = effects.emplace_back(Effect{.kind = Effect::Kind::kFailed});
  failed.group = group.id;
  failed.session = group.session->session.id;
  failed.error = std::move(error);
  for (const LeaseRecord* record : group.leases) failed.leases.push_back(record->lease.id);
}

void Ledger::Impl::FailQueued(Group& group, Error error, Effects& effects) {
  TellFailed(group, std::move(error), effects);
  Dequeue(group);
  EraseGroup(group, effects);
}

void Ledger::Impl::CancelMaking(Group& group, Error error, Effects& effects) {
  TellFailed(group, std::move(error), effects);
  group.cancelled = true;
  for (LeaseRecord* record : group.leases) DropOwner(*record, effects);
}

void Ledger::Impl::EraseGroup(Group& group, Effects& effects) {
  const std::vector<LeaseRecord*> all = group.leases;
  for (LeaseRecord* record : all) EraseLease(*record, effects);  // the last takes the group with it
}

void Ledger::Impl::LeaveGroup(LeaseRecord& record) {
  Group& group = *record.group;
  std::erase(group.leases, &record);
  if (group.leases.empty()) groups.erase(group.id);
}

Allocated Ledger::Impl::Answer(const Group& group) const {
  Allocated answer;
  answer.group = group.id;
  answer.state = State::kUnconfirmed;
  for (const LeaseRecord* record : group.leases) {
    if (!record->lease.owner) continue;
    answer.leases.push_back(record->lease.id);
    answer.state = std::min(answer.state, record->lease.state);
  }
  if (group.state == State::kQueued) answer.queue_position = queue.Position(group);
  return answer;
}

}  // namespace gpulease::ledger
