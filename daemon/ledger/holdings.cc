// SPDX-License-Identifier: Apache-2.0
//
// Holdings: who has a lease open.
#include <algorithm>

#include "daemon/ledger/impl.h"
#include "daemon/ledger/permissions.h"

namespace gpulease::ledger {

LeaseRecord* Ledger::Impl::FindLease(LeaseId id) {
  const auto found = leases.find(id);
  return found == leases.end() ? nullptr : &found->second;
}

Holding* Ledger::Impl::FindHolding(LeaseRecord& record, SessionId session) {
  for (Holding& holding : record.lease.holders) {
    if (holding.session == session) return &holding;
  }
  return nullptr;
}

void Ledger::Impl::AddHolding(LeaseRecord& record, SessionRecord& session, Access access) {
  StopEnd(record);
  record.lease.holders.push_back(
      {session.session.id, access, false, OpenChunks(record.lease, session.session.id)});
  Note(record.lease.id);
  session.session.open += 1;
  if (record.lease.owner == session.session.id) return;
  session.opened.insert(record.lease.id);
  session.user->openings += 1;
}

void Ledger::Impl::Expose(LeaseRecord& record, SessionId session) {
  const Holding* holding = FindHolding(record, session);
  if (holding == nullptr || holding->chunks == 0) return;
  if (!record.exposed || record.exposed_chunks != 0)
    record.exposed_chunks = std::max(record.exposed_chunks, holding->chunks);
  record.exposed = true;
}

bool Ledger::Impl::RemoveHolding(LeaseRecord& record, SessionId id) {
  Holding* holding = FindHolding(record, id);
  if (holding == nullptr) return false;
  Note(record.lease.id);
  record.lease.holders.erase(record.lease.holders.begin() +
                             (holding - record.lease.holders.data()));
  SessionRecord& session = *FindSession(id);
  session.session.open -= 1;
  if (record.lease.owner == id) return true;
  session.opened.erase(record.lease.id);
  session.user->openings -= 1;
  return true;
}

void Ledger::Impl::NoticeDeath(const LeaseRecord& record, Effects& effects) const {
  if (!record.lease.death_notice) return;
  Effect& notice = effects.emplace_back(Effect{.kind = Effect::Kind::kDeathNotice});
  notice.lease = record.lease.id;
}

std::vector<SessionId> Ledger::Impl::HolderSessions(const LeaseRecord& record) const {
  std::vector<SessionId> all;
  all.reserve(record.lease.holders.size());
  for (const Holding& holding : record.lease.holders) all.push_back(holding.session);
  return all;
}

void Ledger::Impl::Take(SessionId session, LeaseId lease, Time now) {
  LeaseRecord* record = FindLease(lease);
  if (record == nullptr) return;
  Holding* holding = FindHolding(*record, session);
  if (holding == nullptr) return;
  if (!holding->taken) Note(lease);
  holding->taken = true;
  if (record->lease.state == State::kOffered && record->lease.owner == session)
    SetState(*record, State::kLeased, now);
}

void Ledger::Impl::Decline(SessionId session, LeaseId lease, Time now, Effects& effects) {
  LeaseRecord* record = FindLease(lease);
  if (record == nullptr) return;
  const Holding* holding = FindHolding(*record, session);
  // What it has taken before it still has: a repeated opening that failed undoes nothing.
  if (holding == nullptr || holding->taken) return;
  RemoveHolding(*record, session);
  if (record->lease.state == State::kOffered && record->lease.owner == session) {
    LetGo(*record, EventType::kReleased, now, effects);
  } else {
    Settle(*record, now, effects);
  }
  Serve(now, effects);  // it may have waited to grow
}

Result<Opened> Ledger::Impl::Open(SessionId session, LeaseId lease, Access access) {
  SessionRecord* caller = FindSession(session);
  if (caller == nullptr) return SessionEnded(session);
  LeaseRecord* record = FindLease(lease);
  const std::string asked = std::to_string(lease.value);
  if (record == nullptr) return NotOpenable(asked);
  return OpenRecord(*caller, *record, asked, access);
}

Result<Opened> Ledger::Impl::OpenByName(SessionId session, const UserId& owner,
                                        std::string_view name, Access access) {
  SessionRecord* caller = FindSession(session);
  if (caller == nullptr) return SessionEnded(session);
  const std::string asked = UserText(owner) + "/" + std::string(name);
  if (LeaseRecord* record = FindByName(owner, name))
    return OpenRecord(*caller, *record, asked, access);
  if (caller->session.spec.user.id() == owner) {
    return MakeError(Code::kNotFound, Reason::kNotOpenable,
                     "the caller has no lease " + std::string(name));
  }
  return NotOpenable(asked);
}

Result<Opened> Ledger::Impl::OpenRecord(SessionRecord& session, LeaseRecord& record,
                                        const std::string& asked, Access access) {
  const SessionId id = session.session.id;
  Lease& lease = record.lease;
  Holding* holding = FindHolding(record, id);
  const bool enough =
      holding != nullptr && (holding->access == Access::kReadWrite || access == Access::kReadOnly);
  if (!enough && lease.owner != id && !MayOpen(session.session.spec.user, lease, access))
    return NotOpenable(asked);
  if (lease.loading && !lease.sealed && lease.owner != id) return StillLoading(lease, asked);
  // Who holds it already may be handed a released lease again; nobody new comes in.
  const bool open = lease.state == State::kOffered || lease.state == State::kLeased ||
                    (lease.state == State::kReleased && enough);
  if (!open) {
    const bool early = lease.state == State::kQueued || lease.state == State::kMaking;
    return MakeError(Code::kFailedPrecondition, early ? Reason::kUnspecified : Reason::kNotOpenable,
                     early ? "lease " + asked + " waits for its memory: open it once it is granted"
                           : "lease " + asked + " has been released");
  }
  if (lease.residence != Residence::kResident) return NotResident(asked);
  if (lease.sealed && access == Access::kReadWrite) return SealedAgainst(asked);
  // It is given them all once more.
  if (holding != nullptr && holding->chunks < OpenChunks(lease)) {
    holding->chunks = OpenChunks(lease);
    Note(lease.id);
  }
  if (enough) return Opened{lease.id, true};
  if (holding != nullptr) {
    holding->access = access;
    Note(lease.id);
    return Opened{lease.id, false};
  }
  if (lease.owner != id && session.user->openings >= options.limits.leases_per_user) {
    return UserLimit("leases of others open", "leases_per_user",
                     AccountOf(session.session.spec.user), session.user->openings,
                     options.limits.leases_per_user);
  }
  AddHolding(record, session, access);
  return Opened{lease.id, false};
}

Status Ledger::Impl::Close(SessionId session, LeaseId lease, Time now, Effects& effects) {
  if (FindSession(session) == nullptr) return SessionEnded(session);
  LeaseRecord* record = FindLease(lease);
  if (record == nullptr || !RemoveHolding(*record, session)) return NotOpenHere(lease);
  if (record->lease.owner == session) {
    CallOffSuspend(*record, effects);
    // It has let go before it said that it has it: then it had it.
    if (record->lease.state == State::kOffered) SetState(*record, State::kLeased, now);
    if (record->lease.state == State::kRevoking) DropOwner(*record, effects);
    // What lasts is left to others.
    if (Lasts(record->lease)) Orphan(*record, now, effects);
  }
  Settle(*record, now, effects);
  Serve(now, effects);
  return {};
}

}  // namespace gpulease::ledger
