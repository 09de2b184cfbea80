// SPDX-License-Identifier: Apache-2.0
//
// Serving the queue, and ending what waited too long.
#include "daemon/ledger/impl.h"

namespace gpulease::ledger {

void Ledger::Impl::Serve(Time now, Effects& effects) {
  while (ServeOne(now, effects)) {
  }
}

// Walks the queue up to the first group that can be granted, and grants it. False when there is
// none: then `reserved` and `held` are what the walk found.
bool Ledger::Impl::ServeOne(Time now, Effects& effects) {
  for (TenantAccount* tenant : held) tenant->held = {};
  held.clear();
  reserved.reset();
  if (queue.empty()) return false;
  PoolSet wanted;
  for (const PoolAccount& pool : pools) wanted.set(pool.index, pool.queued > 0);
  std::vector<Group*> heads;
  Group* next = nullptr;
  std::optional<Placement> placement;
  const auto hold = [this](TenantAccount& tenant, PoolKind kind) {
    tenant.held[Index(kind)] = true;
    held.push_back(&tenant);
  };
  queue.Walk([&](Group& group) {
    const Wait& wait = *group.wait;
    TenantAccount& tenant = *group.tenant;
    bool limited = false;
    for (const PoolKind kind : {PoolKind::kDevice, PoolKind::kHost}) {
      if (wait.bytes[Index(kind)] == 0) continue;
      if (tenant.held[Index(kind)]) {
        limited = true;
      } else if (!tenant.Allows(kind, wait.bytes[Index(kind)])) {
        hold(tenant, kind);
        limited = true;
      }
    }
    if (limited) return true;
    // What waits for a pool to be usable again keeps nobody from the others.
    if (!Reachable(wait.pieces, pools)) return true;
    if (wait.unobserved.none() && (wait.pools & ~reserved).any()) {
      placement = Place(wait.pieces, pools, reserved);
      if (placement) {
        KindBytes exact{};
        for (std::size_t i = 0; i < placement->size(); ++i) {
          const PoolAccount& pool = pools[(*placement)[i]];
          exact[Index(pool.spec.kind)] += *pool.Rounded(wait.pieces[i].requested);
        }
        for (const PoolKind kind : {PoolKind::kDevice, PoolKind::kHost}) {
          if (tenant.Allows(kind, exact[Index(kind)])) continue;
          hold(tenant, kind);
          placement.reset();
          return true;
        }
        next = &group;
        return false;
      }
    }
    if (!wait.head && (wait.pools & ~reserved).any()) heads.push_back(&group);
    reserved |= wait.pools;
    return (wanted & ~reserved).any();
  });
  for (Group* head : heads) queue.MakeHead(*head);
  if (next == nullptr) return false;

  std::uint64_t chunks = 0;
  for (std::size_t i = 0; i < placement->size(); ++i) {
    const PoolAccount& pool = pools[(*placement)[i]];
    const Piece& piece = next->wait->pieces[i];
    chunks += pool.ChunkCount(*pool.Rounded(piece.requested), piece.whole);
  }
  const std::uint64_t used = ChunkCount();
  if (chunks > options.limits.chunks - used) {
    FailQueued(*next, NoChunksLeft(chunks, used, options.limits.chunks), effects);
    return true;
  }
  if (!next->wait->head) queue.EndTurn(*next);
  Dequeue(*next);
  Grant(*next, *placement, now, effects);
  return true;
}

void Ledger::Impl::Expire(Group& group, Time now, Effects& effects) {
  const Wait& wait = *group.wait;
  const UserSpec& user = group.session->session.spec.user;
  Error error;
  if (wait.shortage) {
    Shortage shortage = ShortageOf(wait.pieces, user);
    shortage.waiting_before = 0;
    error = DriverMemoryShort(shortage, *wait.shortage, now - wait.first_shortage);
  } else {
    Shortage shortage = ShortageOf(wait.pieces, user);
    shortage.waiting_before = queue.Position(group) - 1;
    error = wait.brief ? MemoryShort(shortage) : WaitOver(shortage, now - wait.since);
    for (const PoolKind kind : {PoolKind::kDevice, PoolKind::kHost}) {
      const Bytes bytes = wait.bytes[Index(kind)];
      if (group.tenant->Allows(kind, bytes)) continue;
      Error limit = TenantLimit(*group.tenant, kind, bytes, bytes, false);
      if (wait.brief) {
        error = std::move(limit);
        continue;
      }
      limit.code = Code::kDeadlineExceeded;
      limit.reason = Reason::kWaitOver;
      error = WithContext("waited until the end", std::move(limit));
    }
  }
  std::vector<Effect> expired;
  for (const LeaseRecord* record : group.leases)
    Emit(EventType::kExpired, *record, {record->lease.owner}, expired);
  FailQueued(group, std::move(error), effects);
  effects.insert(effects.end(), std::make_move_iterator(expired.begin()),
                 std::make_move_iterator(expired.end()));
}

void Ledger::Impl::Emit(EventType type, const LeaseRecord& record, std::vector<SessionId> to,
                        Effects& effects) const {
  Effect& event = effects.emplace_back(Effect{.kind = Effect::Kind::kEvent});
  event.event = type;
  event.lease = record.lease.id;
  event.group = record.lease.group;
  event.pool = record.lease.pool;
  event.name = record.lease.name;
  event.sessions = std::move(to);
}

void Ledger::Impl::Tick(Time now, Effects& effects) {
  while (!waits.empty() && waits.begin()->first <= now)
    Expire(groups.at(waits.begin()->second), now, effects);
  while (!graces.empty() && graces.begin()->first <= now)
    EndSession(graces.begin()->second, true, now, effects);
  while (!bounds.empty() && bounds.begin()->first <= now) {
    LeaseRecord& record = *FindLease(bounds.begin()->second);
    bounds.erase(bounds.begin());
    SetState(record, State::kUnconfirmed, now);
  }
  while (!orphans.empty() && orphans.begin()->first <= now)
    EndOrphan(*FindLease(orphans.begin()->second), now, effects);
  Serve(now, effects);
}

void Ledger::Impl::Stop(Time now, Effects& effects) {
  stopping = true;
  while (!waits.empty()) {
    FailQueued(groups.at(waits.begin()->second),
               MakeError(Code::kUnavailable, Reason::kStopping,
                         "the daemon is about to stop: retry when it is back"),
               effects);
  }
  Serve(now, effects);
}

}  // namespace gpulease::ledger
