// SPDX-License-Identifier: Apache-2.0
//
// Broker: leases that are filled once for many: sealed, waited for, and claimed from who is gone.
#include <algorithm>

#include "daemon/broker/broker.h"

namespace gpulease::broker {

using ledger::Effects;
using ledger::LeaseId;
using ledger::SessionId;

Result<LeaseView> Broker::Seal(const peers::Peer& peer, SessionId session, LeaseId lease,
                               std::string content_tag,
                               std::shared_ptr<const std::string> directory) {
  GPULEASE_RETURN_IF_ERROR(CheckSession(peer, session));
  Effects effects;
  Result<LeaseView> view = LeaseView();
  {
    MutexLock lock(mutex_);
    const Status sealed = ledger_.Seal(session, lease, std::move(content_tag), std::move(directory),
                                       BootClock::now(), effects);
    if (sealed.ok()) {
      view = ViewOf(*ledger_.FindLease(lease));
    } else {
      view = WhyOver(session, lease, sealed.error());
    }
  }
  Carry(std::move(effects));
  return view;
}

Result<LeaseView> Broker::Claim(const peers::Peer& peer, SessionId session, std::uint64_t push_tag,
                                LeaseId lease) {
  GPULEASE_RETURN_IF_ERROR(CheckSession(peer, session));
  Effects effects;
  Result<ledger::Opened> claimed = ledger::Opened();
  ledger::Access access = ledger::Access::kReadWrite;
  {
    MutexLock lock(mutex_);
    claimed = ledger_.Claim(session, lease, BootClock::now(), effects);
    Settle(effects);
    if (claimed.ok() && ledger_.FindLease(lease)->sealed) access = ledger::Access::kReadOnly;
  }
  return FinishOpen(session, push_tag, std::move(claimed), std::move(effects), access);
}

Result<LeaseId> Broker::FindByName(const peers::Peer& peer, const ledger::UserId& owner,
                                   std::string_view name) const {
  const ledger::UserSpec user = UserOf(peer);
  MutexLock lock(mutex_);
  const ledger::Lease* const lease = ledger_.FindByName(owner, name);
  if (lease == nullptr || !ledger_.MaySee(user, *lease)) return NotVisible();
  return lease->id;
}

std::uint64_t Broker::AwaitSealed(const peers::Peer& peer, LeaseId id, SealedCallback done) {
  const ledger::UserSpec user = UserOf(peer);
  Result<LeaseView> answer = NotVisible();
  {
    MutexLock lock(mutex_);
    const ledger::Lease* const lease = ledger_.FindLease(id);
    if (stopping_) {
      answer = Stopping();
    } else if (lease != nullptr && ledger_.MaySee(user, *lease)) {
      if (!lease->loading || lease->sealed) {
        answer = FullViewOf(*lease, user);
      } else if (const auto waiting = std::count_if(
                     readers_.begin(), readers_.end(),
                     [&](const auto& entry) { return entry.second.user == user.id(); });
                 waiting >= EventHub::kMostOfUser) {
        answer =
            MakeError(Code::kResourceExhausted, Reason::kSessionLimit,
                      "uid " + std::to_string(user.uid) + " awaits " + std::to_string(waiting) +
                          " seals already: retry after some of them");
      } else {
        const std::uint64_t ticket = next_ticket_++;
        readers_.emplace(id, Reader{ticket, user.id(), std::move(done)});
        return ticket;
      }
    }
  }
  done(std::move(answer));
  return 0;
}

void Broker::CancelAwaitSealed(std::uint64_t ticket) {
  SealedCallback done;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(readers_.begin(), readers_.end(), [&](const auto& entry) {
      return entry.second.ticket == ticket;
    });
    if (ticket == 0 || found == readers_.end()) return;
    done = std::move(found->second.done);
    readers_.erase(found);
  }
  done(MakeError(Code::kCancelled, Reason::kUnspecified, "the call was cancelled"));
}

void Broker::TellReaders(LeaseId id) {
  std::vector<SealedCallback> told;
  Result<LeaseView> answer =
      MakeError(Code::kAborted, Reason::kNotSealed,
                "lease " + std::to_string(id.value) +
                    " ended before it was sealed: fill it anew, or wait for who does");
  {
    MutexLock lock(mutex_);
    const ledger::Lease* const lease = ledger_.FindLease(id);
    if (lease != nullptr && lease->sealed) answer = ViewOf(*lease);
    const auto [first, last] = readers_.equal_range(id);
    for (auto reader = first; reader != last; ++reader)
      told.push_back(std::move(reader->second.done));
    readers_.erase(first, last);
  }
  for (const SealedCallback& done : told) done(answer);
}

void Broker::StopReaders() {
  std::multimap<LeaseId, Reader> readers;
  {
    MutexLock lock(mutex_);
    readers.swap(readers_);
  }
  for (const auto& [lease, reader] : readers) {
    reader.done(Stopping());
  }
}

}  // namespace gpulease::broker
