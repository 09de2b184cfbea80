// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/hang_up_watch.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>

namespace gpulease::memory {
namespace {

constexpr std::uint64_t kWake = 0;  // the id of no lease

}  // namespace

Status HangUpWatch::Start() {
  if (thread_.joinable()) return {};
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoError("epoll_create1", errno);
  UniqueFd wake(eventfd(0, EFD_CLOEXEC));
  if (!wake) return ErrnoError("eventfd", errno);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWake}};
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0)
    return ErrnoError("epoll_ctl", errno);
  epoll_ = std::move(epoll);
  wake_ = std::move(wake);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "hang-ups");
  return {};
}

Status HangUpWatch::Watch(ledger::LeaseId lease, std::shared_ptr<const UniqueFd> descriptor) {
  MutexLock lock(mutex_);
  if (stopped_)
    return MakeError(Code::kFailedPrecondition, Reason::kStopping, "the daemon is about to stop");
  GPULEASE_RETURN_IF_ERROR(Start());
  // Errors and hang-ups are told unasked.
  epoll_event event{.events = 0, .data = {.u64 = lease.value}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor->get(), &event) != 0)
    return ErrnoError("epoll_ctl", errno);
  watched_[lease] = std::move(descriptor);
  return {};
}

void HangUpWatch::Forget(ledger::LeaseId lease) {
  std::shared_ptr<const UniqueFd> descriptor;
  MutexLock lock(mutex_);
  const auto found = watched_.find(lease);
  if (found == watched_.end()) return;
  descriptor = std::move(found->second);
  watched_.erase(found);
  // Before it is closed: duplicates elsewhere would keep it watched.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor->get(), nullptr);
}

void HangUpWatch::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    if (!thread_.joinable()) return;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void HangUpWatch::Run() {
  while (true) {
    epoll_event event;
    if (epoll_wait(epoll_.get(), &event, 1, -1) != 1) continue;
    if (event.data.u64 == kWake) return;
    const ledger::LeaseId lease{event.data.u64};
    {
      MutexLock lock(mutex_);
      if (!watched_.contains(lease)) continue;
    }
    Forget(lease);
    gone_(lease);
  }
}

}  // namespace gpulease::memory
