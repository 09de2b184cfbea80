// SPDX-License-Identifier: Apache-2.0
//
// The end of a lease: released, revoked, destroyed, closed.
#include <algorithm>

#include "daemon/ledger/impl.h"
#include "daemon/ledger/permissions.h"

namespace gpulease::ledger {

void Ledger::Impl::SetState(LeaseRecord& record, State state, Time now) {
  record.lease.state = state;
  record.lease.changed = now;
  Note(record.lease.id);
  if (record.charge) record.charge.MoveTo(ColumnOf(state, record.lease.quarantined));
}

void Ledger::Impl::FreeName(LeaseRecord& record, Effects& effects) {
  if (record.lease.loading && !record.lease.sealed) {
    record.lease.loading = false;
    Effect& loaded = effects.emplace_back(Effect{.kind = Effect::Kind::kLoaded});
    loaded.lease = record.lease.id;
  }
  if (record.lease.name.empty()) return;
  const auto found = record.user->names.find(NameKey(record.lease.realm, record.lease.name));
  if (found != record.user->names.end() && found->second == &record)
    record.user->names.erase(found);
}

void Ledger::Impl::DropOwner(LeaseRecord& record, Effects& effects) {
  FreeName(record, effects);
  LeaveOwner(record, effects);
}

void Ledger::Impl::LeaveOwner(LeaseRecord& record, Effects& effects) {
  if (!record.lease.owner) return;
  EndGrowth(record, "its lease has no owner any more", effects);
  CallOffSuspend(record, effects);
  if (LeaseRecord* parent = FindLease(record.lease.parent);
      parent != nullptr && parent->lease.growth == record.lease.id)
    parent->lease.growth = {};
  Note(record.lease.id);
  SessionRecord& session = *FindSession(record.lease.owner);
  Group& group = *record.group;
  record.charge.LeaveOwner();
  session.owned.erase(record.lease.id);
  session.session.owned = static_cast<std::uint32_t>(session.owned.size());
  record.lease.owner = {};
  group.owned -= 1;
  if (group.owned > 0) return;
  if (!group.request_id.empty()) session.requests.erase(group.request_id);
  group.session = nullptr;
}

void Ledger::Impl::LetGo(LeaseRecord& record, EventType type, Time now, Effects& effects) {
  StopLasting(record);
  DropOwner(record, effects);
  if (!record.lease.holders.empty() && record.lease.state != State::kRevoking) {
    SetState(record, State::kReleased, now);
    Emit(type, record, HolderSessions(record), effects);
  }
  Settle(record, now, effects);
}

void Ledger::Impl::Settle(LeaseRecord& record, Time now, Effects& effects) {
  SettleShrink(record, now, effects);
  if (IsOrphan(record.lease)) return SetEnd(record, now);
  if (record.lease.holders.empty() && !record.lease.owner &&
      record.lease.state >= State::kOffered && record.lease.state < State::kDestroying) {
    StartDestroy(record, now, effects);
  }
}

void Ledger::Impl::StartDestroy(LeaseRecord& record, Time now, Effects& effects) {
  record.lease.quarantined = record.exposed;
  SetState(record, State::kDestroying, now);
  Effect& destroy = effects.emplace_back(Effect{.kind = Effect::Kind::kDestroy});
  destroy.lease = record.lease.id;
  destroy.group = record.lease.group;
  destroy.pool = record.lease.pool;
}

void Ledger::Impl::Revoke(LeaseRecord& record, bool force, Time now, Effects& effects) {
  std::vector<SessionId> told = HolderSessions(record);
  const SessionId owner = record.lease.owner;
  if (owner && std::find(told.begin(), told.end(), owner) == told.end()) told.push_back(owner);
  if (!told.empty()) Emit(EventType::kRevoked, record, std::move(told), effects);
  StopLasting(record);
  FreeName(record, effects);
  EndGrowth(record, "its lease was revoked", effects);
  if (force) {
    for (const SessionId holder : HolderSessions(record)) {
      Expose(record, holder);
      RemoveHolding(record, holder);
      NoticeDeath(record, effects);
    }
  }
  // An owner that has it open keeps its right until it lets go.
  if (owner && FindHolding(record, owner) == nullptr) DropOwner(record, effects);
  if (!record.lease.holders.empty()) SetState(record, State::kRevoking, now);
  Settle(record, now, effects);
}

Result<Released> Ledger::Impl::Release(SessionId session, const UserSpec& caller, LeaseId lease,
                                       bool force, Time now, Effects& effects) {
  if (session && FindSession(session) == nullptr) return SessionEnded(session);
  if (force && !caller.administrator) {
    return MakeError(Code::kPermissionDenied, Reason::kUnspecified,
                     "only administrators may end the rights of others by force");
  }
  LeaseRecord* record = FindLease(lease);
  if (record == nullptr) return NotTheCallers(lease);
  const bool owner = session && record->lease.owner == session;
  const bool heir = IsOrphan(record->lease) && IsOwner(caller, record->lease);
  if (!owner && !heir && !caller.administrator) return NotTheCallers(lease);
  const State before = record->lease.state;
  if (before == State::kQueued || before == State::kMaking) {
    Group& group = *record->group;
    if (group.cancelled) return Released{State::kDestroying, 0};
    Error error = MakeError(Code::kCancelled, Reason::kUnspecified,
                            owner ? "its owner released it before it was granted"
                                  : "an administrator released it before it was granted");
    if (!owner) Emit(EventType::kRevoked, *record, {record->lease.owner}, effects);
    if (before == State::kQueued) {
      FailQueued(group, std::move(error), effects);
    } else {
      CancelMaking(group, std::move(error), effects);
    }
    Serve(now, effects);
    return Released{State::kDestroying, 0};
  }
  if (before >= State::kDestroying) {
    if (force && record->aside) {
      record->aside = false;
      Note(lease);
    }
    return Released{before, 0};
  }
  if ((owner || heir) && !force) {
    if (session) RemoveHolding(*record, session);
    LetGo(*record, EventType::kReleased, now, effects);
  } else {
    Revoke(*record, force, now, effects);
  }
  Serve(now, effects);  // it may have waited to grow
  return Released{record->lease.state, static_cast<std::uint32_t>(record->lease.holders.size())};
}

void Ledger::Impl::Destroyed(LeaseId lease, Time now, Effects& effects) {
  LeaseRecord* record = FindLease(lease);
  if (record == nullptr || record->lease.state != State::kDestroying) return;
  record->charge.CloseChunks();
  const PoolAccount& pool = *record->charge.pool();
  if (!pool.spec.confirms_releases || pool.lost) {
    EraseLease(*record, effects);
  } else {
    AwaitBytes(*record, now, effects);
  }
  Serve(now, effects);
}

void Ledger::Impl::AwaitBytes(LeaseRecord& record, Time now, Effects& effects) {
  // One that was suspended.
  if (record.lease.size == 0) return EraseLease(record, effects);
  PoolAccount& pool = *record.charge.pool();
  record.lease.unconfirmed_size = record.lease.size;
  record.closed_turn = ++closed_turns;
  SetState(record, State::kReleasing, now);
  pool.closed.emplace(record.closed_turn, record.lease.id);
  bounds.emplace(After(now, options.limits.release_bound), record.lease.id);
  Effect& observe = effects.emplace_back(Effect{.kind = Effect::Kind::kObserve});
  observe.pool = pool.index;
  observe.lease = record.lease.id;
}

void Ledger::Impl::EraseLease(LeaseRecord& record, Effects& effects) {
  StopLasting(record);
  DropOwner(record, effects);
  const LeaseId id = record.lease.id;
  Note(id);
  if (record.closed_turn != 0) record.charge.pool()->closed.erase(record.closed_turn);
  if (record.lease.state == State::kReleasing)
    bounds.erase({After(record.lease.changed, options.limits.release_bound), id});
  UserAccount* user = record.user;
  TenantAccount* tenant = record.group->tenant;
  const UserId account = AccountOf(UserId(record.lease.uid, record.lease.realm));
  user->leases -= 1;
  user->label_bytes -= TextBytes(record.lease);
  LeaveGroup(record);
  leases.erase(id);
  Collect(user, account, tenant);
}

}  // namespace gpulease::ledger
