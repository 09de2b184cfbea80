// SPDX-License-Identifier: Apache-2.0
//
// Broker: leases that grow and shrink in place, are suspended and resumed.
#include <algorithm>

#include "daemon/broker/broker.h"

namespace gpulease::broker {

using ledger::Effect;
using ledger::Effects;
using ledger::LeaseId;
using ledger::SessionId;

Result<ResizeView> Broker::Resize(const peers::Peer& peer, std::uint64_t push_tag,
                                  const ledger::ResizeCommand& command) {
  GPULEASE_RETURN_IF_ERROR(CheckSession(peer, command.session));
  return Grow(push_tag, {command.session, command.lease, command.have_chunks},
              [&](Effects& effects) GPULEASE_REQUIRES(mutex_) {
                return ledger_.Resize(command, BootClock::now(), effects);
              });
}

Result<ResizeView> Broker::Resume(const peers::Peer& peer, std::uint64_t push_tag,
                                  const ledger::ResumeCommand& command) {
  GPULEASE_RETURN_IF_ERROR(CheckSession(peer, command.session));
  return Grow(push_tag, command, [&](Effects& effects) GPULEASE_REQUIRES(mutex_) {
    return ledger_.Resume(command, BootClock::now(), effects);
  });
}

Result<ResizeView> Broker::Grow(std::uint64_t push_tag, const ledger::ResumeCommand& command,
                                const std::function<Result<ledger::Resized>(Effects&)>& ask) {
  if (reception_->FindSocket(command.session) == nullptr) {
    return MakeError(
        Code::kUnavailable, Reason::kHandOver,
        "the session has no handle socket now: nothing was resized; connect anew and retry");
  }
  Effects effects;
  Result<ledger::Resized> resized = ledger::Resized();
  {
    MutexLock lock(mutex_);
    if (stopping_) return Stopping();
    resized = ask(effects);
    Settle(effects);
    if (!resized.ok())
      resized = WhyOver(command.session, command.lease, std::move(resized).error());
  }
  if (!resized.ok()) {
    Carry(std::move(effects));
    return std::move(resized).error();
  }
  if (resized->growth && resized->state == ledger::State::kQueued) {
    for (PoolWatch& watch : watches_) watch.lane->Hurry();
  }
  const bool make_here =
      resized->growth && !resized->retry && resized->state == ledger::State::kMaking;
  Carry(std::move(effects), make_here ? resized->group : ledger::GroupId());
  if (make_here) GPULEASE_RETURN_IF_ERROR(MakeHere(resized->group));
  if (resized->growth) {
    MutexLock lock(mutex_);
    const ledger::Lease* const lease = ledger_.FindLease(command.lease);
    // Neither waiting nor grown: it failed meanwhile, or another call gave it up.
    if (lease != nullptr && lease->growth != resized->growth && lease->grown != resized->growth) {
      return WhyOver(command.session, resized->growth,
                     MakeError(Code::kAborted, Reason::kHandOver,
                               "the lease was given another size while it grew: retry"));
    }
  }
  return FinishResize(command.session, push_tag, command.lease, command.have_chunks);
}

Result<ResizeView> Broker::Refresh(const peers::Peer& peer, SessionId session,
                                   std::uint64_t push_tag, LeaseId lease, std::uint32_t have_chunks,
                                   bool takes_part) {
  GPULEASE_RETURN_IF_ERROR(CheckSession(peer, session));
  Effects effects;
  Result<std::uint32_t> open = std::uint32_t{0};
  {
    MutexLock lock(mutex_);
    Status takes = takes_part ? ledger_.TakePart(session, lease) : Status();
    open = takes.ok() ? ledger_.Refresh(session, lease, have_chunks, BootClock::now(), effects)
                      : Result<std::uint32_t>(std::move(takes).error());
    Settle(effects);
    if (!open.ok()) open = WhyOver(session, lease, std::move(open).error());
  }
  Carry(std::move(effects));
  if (!open.ok()) return std::move(open).error();
  return FinishResize(session, push_tag, lease, have_chunks);
}

Result<ResizeView> Broker::Suspend(const peers::Peer& peer, SessionId session, LeaseId lease,
                                   std::uint32_t have_chunks) {
  GPULEASE_RETURN_IF_ERROR(CheckSession(peer, session));
  Effects effects;
  Status status;
  {
    MutexLock lock(mutex_);
    if (stopping_) return Stopping();
    status = ledger_.Suspend(session, lease, have_chunks, BootClock::now(), effects);
    Settle(effects);
    if (!status.ok()) status = WhyOver(session, lease, std::move(status).error());
  }
  Carry(std::move(effects));
  if (!status.ok()) return std::move(status).error();
  return FinishResize(session, /*push_tag=*/0, lease, ~std::uint32_t{0});  // pushes nothing
}

Result<ResizeView> Broker::FinishResize(SessionId session, std::uint64_t push_tag, LeaseId id,
                                        std::uint32_t have_chunks) {
  ResizeView answer;
  Parts parts;
  ledger::Access access = ledger::Access::kReadWrite;
  {
    MutexLock lock(mutex_);
    const ledger::Lease* const lease = ledger_.FindLease(id);
    const auto holds = [&](const ledger::Holding& holding) { return holding.session == session; };
    if (lease == nullptr || std::none_of(lease->holders.begin(), lease->holders.end(), holds)) {
      return WhyOver(session, id,
                     MakeError(Code::kAborted, Reason::kHandOver,
                               "the lease ended while its chunks were handed over"));
    }
    access = std::find_if(lease->holders.begin(), lease->holders.end(), holds)->access;
    parts = PartsOf(*lease, session);
    answer.open_chunks = static_cast<std::uint32_t>(parts.lease.chunks.size());
    answer.lease = ViewOf(*lease);
    if (lease->owner == session) {
      if (const ledger::Lease* const growth = ledger_.FindLease(lease->growth)) {
        answer.growth = growth->id;
        answer.queue_position = ledger_.QueuePosition(growth->group);
      }
      const bool suspending = lease->residence == ledger::Residence::kSuspending;
      if (lease->target != 0 || suspending) {
        const ledger::Session* const caller = ledger_.FindSession(session);
        answer.waits_for = FullViewOf(*lease, caller->spec.user).holders;
        std::erase_if(answer.waits_for, [&](const HolderView& holder) {
          return holder.holding.chunks <= ledger::OpenChunks(*lease) ||
                 (suspending && holder.owner);
        });
      }
    }
  }
  GPULEASE_RETURN_IF_ERROR(Push(session, push_tag, parts, access, have_chunks));
  return answer;
}

Result<Grant> Broker::HandOverGrown(SessionId session, std::uint64_t push_tag, LeaseId id,
                                    std::uint32_t first) {
  Grant grant;
  Parts parts;
  bool holds = false;
  {
    MutexLock lock(mutex_);
    const ledger::Lease* const lease = ledger_.FindLease(id);
    if (lease == nullptr || lease->owner != session) {
      return MakeError(Code::kAborted, Reason::kHandOver,
                       "the lease was given back or lost while it grew: retry");
    }
    parts = PartsOf(*lease, session);
    grant.leases.push_back(ViewOf(parts.lease));
    holds = std::any_of(lease->holders.begin(), lease->holders.end(),
                        [&](const auto& holding) { return holding.session == session; });
  }
  // Who has closed it meanwhile, and owns it still, is given all of it when he opens it.
  if (!holds) return grant;
  GPULEASE_RETURN_IF_ERROR(Push(session, push_tag, parts, ledger::Access::kReadWrite, first));
  return grant;
}

}  // namespace gpulease::broker
