// SPDX-License-Identifier: Apache-2.0
//
// Leases that are more than their owner's: sealed for readers, and those that outlive him.
#include <algorithm>
#include <utility>

#include "daemon/ledger/impl.h"
#include "daemon/ledger/permissions.h"

namespace gpulease::ledger {

Status Ledger::Impl::Seal(SessionId session, LeaseId id, std::string content_tag,
                          std::shared_ptr<const std::string> directory, Effects& effects) {
  if (FindSession(session) == nullptr) return SessionEnded(session);
  LeaseRecord* record = FindLease(id);
  if (record == nullptr || record->lease.owner != session) return NotTheCallers(id);
  Lease& lease = record->lease;
  const std::string name = "lease " + std::to_string(id.value);
  if (lease.sealed) {
    if (lease.content_tag == content_tag) return {};
    return MakeError(Code::kFailedPrecondition, Reason::kSealed,
                     name + " is sealed already, as \"" + lease.content_tag + "\"");
  }
  if (lease.state != State::kOffered && lease.state != State::kLeased) {
    return MakeError(Code::kFailedPrecondition, Reason::kNotSealed,
                     name + " is not made, or its rights have ended");
  }
  if (lease.residence != Residence::kResident) return NotResident(std::to_string(id.value));
  if (lease.growth || lease.target != 0) {
    return MakeError(Code::kFailedPrecondition, Reason::kNotSealed,
                     name + " grows or shrinks: seal it when it has its size");
  }
  for (const Holding& holding : lease.holders) {
    if (holding.session == session || holding.access == Access::kReadOnly) continue;
    const auto holder = sessions.find(holding.session);
    return MakeError(Code::kFailedPrecondition, Reason::kNotSealed,
                     name + " is open for writing in process " +
                         std::to_string(holder->second.session.spec.pid) +
                         ": seal it when that has closed it");
  }
  const Bytes more = content_tag.size() + (directory ? directory->size() : 0);
  UserAccount& user = *record->user;
  if (more > 0 && (user.label_bytes >= options.limits.label_bytes_per_user ||
                   more > options.limits.label_bytes_per_user - user.label_bytes)) {
    return UserLimit("bytes of names, labels and directories", "label_bytes_per_user",
                     AccountOf(UserId(lease.uid, lease.realm)), user.label_bytes,
                     options.limits.label_bytes_per_user);
  }
  user.label_bytes += more;
  lease.content_tag = std::move(content_tag);
  lease.directory = std::move(directory);
  lease.sealed = true;
  if (Holding* mine = FindHolding(*record, session)) mine->access = Access::kReadOnly;
  Note(id);
  if (lease.loading) {
    Effect& loaded = effects.emplace_back(Effect{.kind = Effect::Kind::kLoaded});
    loaded.lease = id;
  }
  if (std::vector<SessionId> told = HolderSessions(*record); !told.empty())
    Emit(EventType::kSealed, *record, std::move(told), effects);
  return {};
}

Result<Opened> Ledger::Impl::Claim(SessionId session, LeaseId id) {
  SessionRecord* caller = FindSession(session);
  if (caller == nullptr) return SessionEnded(session);
  LeaseRecord* record = FindLease(id);
  const std::string asked = std::to_string(id.value);
  if (record == nullptr || !IsOwner(caller->session.spec.user, record->lease))
    return NotOpenable(asked);
  Lease& lease = record->lease;
  if (lease.owner == session) {
    return OpenRecord(*caller, *record, asked,
                      lease.sealed ? Access::kReadOnly : Access::kReadWrite);
  }
  if (!IsOrphan(lease)) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                     "lease " + asked +
                         (lease.owner ? " has an owner, process " + std::to_string(lease.owner_pid)
                                      : " is over") +
                         ": only one whose owner is gone, and that lasts, can be claimed");
  }
  const Holding* former = FindHolding(*record, session);
  const std::uint32_t has = former == nullptr ? 0 : former->chunks;
  RemoveHolding(*record, session);
  // A group of its own: those that were asked for together may be another's by now.
  TenantAccount* tenant = record->group->tenant;
  LeaveGroup(*record);
  const GroupId group_id{FreshId()};
  Group& group = groups[group_id];
  group.id = group_id;
  group.state = State::kOffered;
  group.session = caller;
  group.tenant = tenant;
  group.owned = 1;
  group.leases = {record};
  record->group = &group;
  record->place = 0;
  lease.group = group_id;
  lease.owner = session;
  lease.owner_pid = caller->session.spec.pid;
  caller->owned.insert(id);
  caller->session.owned = static_cast<std::uint32_t>(caller->owned.size());
  record->charge.TakeOwner(*caller);
  AddHolding(*record, *caller, lease.sealed ? Access::kReadOnly : Access::kReadWrite);
  Holding& holding = lease.holders.back();
  holding.chunks = std::max(holding.chunks, has);
  return Opened{id, false};
}

void Ledger::Impl::Orphan(LeaseRecord& record, Time now, Effects& effects) {
  LeaveOwner(record, effects);
  if (std::vector<SessionId> told = HolderSessions(record); !told.empty())
    Emit(EventType::kOwnerGone, record, std::move(told), effects);
  Settle(record, now, effects);
}

void Ledger::Impl::SetEnd(LeaseRecord& record, Time now) {
  if (!record.lease.holders.empty() || record.lease.ends != kNever ||
      record.lease.linger == kForever)
    return;
  record.lease.ends = After(now, record.lease.linger);
  orphans.emplace(record.lease.ends, record.lease.id);
  Note(record.lease.id);
}

void Ledger::Impl::StopEnd(LeaseRecord& record) {
  if (record.lease.ends == kNever) return;
  orphans.erase({record.lease.ends, record.lease.id});
  record.lease.ends = kNever;
  Note(record.lease.id);
}

void Ledger::Impl::StopLasting(LeaseRecord& record) {
  StopEnd(record);
  record.user->lasting_bytes -= std::exchange(record.lasting, 0);
  record.lease.linger = {};
}

void Ledger::Impl::EndOrphan(LeaseRecord& record, Time now, Effects& effects) {
  LetGo(record, EventType::kReleased, now, effects);
}

}  // namespace gpulease::ledger
