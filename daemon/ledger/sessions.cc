// SPDX-License-Identifier: Apache-2.0
//
// Sessions: open, lose the connection, resume, end.
#include "daemon/ledger/impl.h"

namespace gpulease::ledger {

SessionRecord* Ledger::Impl::FindSession(SessionId id) {
  const auto found = sessions.find(id);
  return found == sessions.end() ? nullptr : &found->second;
}

Result<SessionId> Ledger::Impl::OpenSession(SessionSpec spec, Time now, Effects& effects) {
  const UserId account = AccountOf(spec.user);
  if (const auto user = users.find(account);
      (user == users.end() ? 0 : user->second.sessions) >= options.limits.sessions_per_user) {
    return UserLimit("sessions", "sessions_per_user", account,
                     user == users.end() ? 0 : user->second.sessions,
                     options.limits.sessions_per_user);
  }
  const SessionId id{FreshId()};
  AddSession(id, std::move(spec), now);
  Serve(now, effects);  // the tenant's limit may have grown
  return id;
}

SessionRecord& Ledger::Impl::AddSession(SessionId id, SessionSpec spec, Time now) {
  UserAccount& user = users[AccountOf(spec.user)];
  TenantAccount& tenant = tenants[spec.tenant.name];
  tenant.spec = spec.tenant;
  user.sessions += 1;
  tenant.sessions += 1;
  SessionRecord& record = sessions[id];
  record.user = &user;
  record.tenant = &tenant;
  record.session.id = id;
  record.session.spec = std::move(spec);
  record.session.created = now;
  return record;
}

std::uint64_t Ledger::Impl::FreshId() {
  for (;;) {
    const std::uint64_t id = ids.Next();
    if (!sessions.contains(SessionId{id}) && !leases.contains(LeaseId{id}) &&
        !groups.contains(GroupId{id})) {
      return id;
    }
  }
}

Status Ledger::Impl::ResumeSession(SessionId id, std::uint64_t process) {
  SessionRecord* record = FindSession(id);
  if (record == nullptr || record->session.connected || record->session.spec.process != process) {
    return SessionEnded(id);
  }
  graces.erase({record->session.grace_ends, id});
  record->session.connected = true;
  record->session.grace_ends = kNever;
  return {};
}

void Ledger::Impl::LoseConnection(SessionId id, Time now, Effects& effects) {
  SessionRecord* record = FindSession(id);
  if (record == nullptr || !record->session.connected) return;
  if (record->session.owned == 0 && record->session.open == 0) {
    return EndSession(id, true, now, effects);
  }
  record->session.connected = false;
  record->session.grace_ends = After(now, options.limits.session_grace);
  graces.emplace(record->session.grace_ends, id);
}

void Ledger::Impl::EndSession(SessionId id, bool process_lives, Time now, Effects& effects) {
  SessionRecord* record = FindSession(id);
  if (record == nullptr) return;
  const std::vector<LeaseId> owned(record->owned.begin(), record->owned.end());
  for (const LeaseId lease : owned) {
    LeaseRecord* mine = FindLease(lease);
    if (mine == nullptr || mine->lease.owner != id) continue;  // gone with its group
    switch (mine->lease.state) {
      case State::kQueued:
        FailQueued(*mine->group, SessionEnded(id), effects);
        break;
      case State::kMaking:
        CancelMaking(*mine->group, SessionEnded(id), effects);
        break;
      default:
        if (FindHolding(*mine, id) != nullptr) {
          if (process_lives) Expose(*mine, id);
          RemoveHolding(*mine, id);
          NoticeDeath(*mine, effects);
        }
        if (Lasts(mine->lease)) {
          Orphan(*mine, now, effects);
        } else {
          LetGo(*mine, EventType::kOwnerGone, now, effects);
        }
    }
  }
  const std::vector<LeaseId> opened(record->opened.begin(), record->opened.end());
  for (const LeaseId lease : opened) {
    LeaseRecord& other = *FindLease(lease);
    if (process_lives) Expose(other, id);
    RemoveHolding(other, id);
    NoticeDeath(other, effects);
    Settle(other, now, effects);
  }
  if (!record->session.connected) graces.erase({record->session.grace_ends, id});
  UserAccount* user = record->user;
  TenantAccount* tenant = record->tenant;
  const UserId account = AccountOf(record->session.spec.user);
  user->sessions -= 1;
  tenant->sessions -= 1;
  sessions.erase(id);
  Effect& forget = effects.emplace_back(Effect{.kind = Effect::Kind::kForget});
  forget.session = id;
  Serve(now, effects);
  Collect(user, account, tenant);
}

void Ledger::Impl::Collect(UserAccount* user, const UserId& id, TenantAccount* tenant) {
  if (user != nullptr && user->unused()) users.erase(id);
  if (tenant != nullptr && tenant->unused()) {
    std::erase(held, tenant);
    tenants.erase(tenant->spec.name);
  }
}

}  // namespace gpulease::ledger
