// SPDX-License-Identifier: Apache-2.0
//
// Suspended leases: they shrink to nothing, and grow back into the same lease.
#include <algorithm>
#include <utility>

#include "daemon/ledger/impl.h"

namespace gpulease::ledger {
namespace {

std::string NameOf(const Lease& lease) { return "lease " + std::to_string(lease.id.value); }

Status CheckSuspendable(const Lease& lease) {
  if (lease.kind != PoolKind::kDevice) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     NameOf(lease) + " is host memory: only GPU memory can be suspended");
  }
  if (lease.ipc) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     NameOf(lease) +
                         " is opened by a CUDA IPC handle, and who has opened it cannot be seen: "
                         "allocate it without ipc_handle to suspend it");
  }
  if (lease.linger > Duration::zero()) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     NameOf(lease) +
                         " outlives its owner, and what is suspended does not: allocate it without "
                         "linger_ms and persistent to suspend it");
  }
  if (lease.residence == Residence::kResident && (lease.growth || lease.target != 0)) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                     NameOf(lease) + " grows or shrinks: suspend it when it has its size");
  }
  return {};
}

}  // namespace

Result<Ledger::Impl::Own> Ledger::Impl::FindOwn(SessionId session, LeaseId id,
                                                std::uint32_t have_chunks) {
  Own own;
  own.session = FindSession(session);
  if (own.session == nullptr) return SessionEnded(session);
  own.record = FindLease(id);
  if (own.record == nullptr || own.record->lease.owner != session || IsGrowth(own.record->lease))
    return NotTheCallers(id);
  if (own.record->lease.state != State::kOffered && own.record->lease.state != State::kLeased) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                     NameOf(own.record->lease) + " is not made, or its rights have ended");
  }
  own.holding = FindHolding(*own.record, session);
  if (own.holding == nullptr) return NotOpenHere(id);
  if (have_chunks > own.holding->chunks) return HasFewer(have_chunks, own.holding->chunks);
  return own;
}

Status Ledger::Impl::TakePart(SessionId session, LeaseId id) {
  if (FindSession(session) == nullptr) return SessionEnded(session);
  LeaseRecord* record = FindLease(id);
  Holding* holding = record == nullptr ? nullptr : FindHolding(*record, session);
  if (holding == nullptr) return NotOpenHere(id);
  if (!std::exchange(holding->takes_part, true)) Note(id);
  return {};
}

Status Ledger::Impl::Suspend(SessionId session, LeaseId id, std::uint32_t have_chunks, Time now,
                             Effects& effects) {
  const Result<Own> own = FindOwn(session, id, have_chunks);
  if (!own.ok()) return own.error();
  LeaseRecord& record = *own->record;
  Lease& lease = record.lease;
  GPULEASE_RETURN_IF_ERROR(CheckSuspendable(lease));
  if (lease.residence == Residence::kSuspended) {
    EndGrowth(record, "it was suspended again", effects);
    Serve(now, effects);
    return {};
  }
  if (lease.residence == Residence::kResident) {
    Error refused;
    std::string names;
    std::vector<SessionId> others;
    for (const Holding& holding : lease.holders) {
      if (holding.session == session) continue;
      others.push_back(holding.session);
      if (holding.takes_part) continue;
      const SessionSpec& spec = FindSession(holding.session)->session.spec;
      names += (names.empty() ? "" : ", ") + std::string("process ") + std::to_string(spec.pid) +
               " (" + spec.program + ")";
      refused.blockers.push_back({id.value, spec.pid, spec.user.uid, lease.size});
    }
    if (!names.empty()) {
      refused.code = Code::kFailedPrecondition;
      refused.reason = Reason::kNotPartaking;
      refused.message = NameOf(lease) + " is open in " + names +
                        ", which did not say that it takes part in a suspend: close it there, or "
                        "have it take part";
      return refused;
    }
    lease.residence = Residence::kSuspending;
    Note(id);
    if (!others.empty()) Emit(EventType::kSuspending, record, std::move(others), effects);
  }
  if (std::exchange(own->holding->chunks, have_chunks) != have_chunks) Note(id);
  SettleShrink(record, now, effects);
  return {};
}

Result<Resized> Ledger::Impl::Resume(const ResumeCommand& command, Time now, Effects& effects) {
  const Result<Own> own = FindOwn(command.session, command.lease, command.have_chunks);
  if (!own.ok()) return own.error();
  if (command.wait < Duration::zero() || command.wait > options.limits.longest_wait)
    return BadField("wait: longer than the longest that is allowed, or negative");
  LeaseRecord& record = *own->record;
  Lease& lease = record.lease;
  const auto all = static_cast<std::uint32_t>(lease.chunks.size());
  if (lease.residence == Residence::kSuspended) {
    if (const LeaseRecord* growth = FindLease(lease.growth))
      return Resized{growth->lease.group, growth->lease.id, growth->lease.state, true};
    ResizeCommand growth{.session = command.session, .lease = command.lease};
    growth.wait = command.wait;
    return Grow(record, growth, lease.suspended, *own->session, now, effects);
  }
  if (lease.residence != Residence::kResident && command.have_chunks == all)
    MakeResident(record, effects);
  const std::uint32_t has = std::max(command.have_chunks, OpenChunks(lease, command.session));
  if (std::exchange(own->holding->chunks, has) != has) Note(lease.id);
  SettleShrink(record, now, effects);
  return Resized{};
}

void Ledger::Impl::MakeResident(LeaseRecord& record, Effects& effects) {
  Lease& lease = record.lease;
  lease.residence = Residence::kResident;
  lease.suspended = 0;
  Note(lease.id);
  std::vector<SessionId> others = HolderSessions(record);
  std::erase(others, lease.owner);
  if (!others.empty()) Emit(EventType::kResumed, record, std::move(others), effects);
}

void Ledger::Impl::CallOffSuspend(LeaseRecord& record, Effects& effects) {
  if (record.lease.residence == Residence::kSuspending) MakeResident(record, effects);
}

}  // namespace gpulease::ledger
