// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/call_loop.h"

#include <pthread.h>

namespace gpulease::rpc {

void CallLoop::Start() {
  MutexLock lock(mutex_);
  AddThread();
}

void CallLoop::AddThread() {
  ++running_;
  std::thread thread([this] { Work(); });
  pthread_setname_np(thread.native_handle(), "rpc");
  thread.detach();  // Join() counts
}

void CallLoop::Work() {
  while (const std::optional<std::uint64_t> turn = TakeReading()) Read(*turn);
  MutexLock lock(mutex_);
  if (--running_ == 0) ended_.NotifyAll();
}

std::optional<std::uint64_t> CallLoop::TakeReading() {
  MutexLock lock(mutex_);
  if (!nobody_reads_ && parked_ >= kMostParked) return std::nullopt;
  ++parked_;
  while (!nobody_reads_ && !over_) {
    if (watched_) {
      parked_turn_.Wait(mutex_);
    } else {
      watched_ = true;
      Watch();
      watched_ = false;
    }
  }
  --parked_;
  if (over_) return std::nullopt;
  nobody_reads_ = false;
  handling_since_ = kNever;
  ++turn_;
  // Another watches from now on.
  if (parked_ == 0) {
    if (running_ < kMostThreads) AddThread();
  } else if (!watched_) {
    parked_turn_.NotifyOne();
  }
  return turn_;
}

void CallLoop::Watch() {
  const Time now = BootClock::now();
  if (handling_since_ != kNever && now - handling_since_ >= kPatience) {
    nobody_reads_ = true;
  } else if (handling_since_ == kNever && now - last_handled_ > kLooksOn) {
    watcher_sleeps_ = true;
    watch_turn_.Wait(mutex_);
    watcher_sleeps_ = false;
  } else {
    watch_turn_.WaitFor(mutex_, kPatience);
  }
}

void CallLoop::Read(std::uint64_t turn) {
  void* tag = nullptr;
  bool ok = false;
  do {
    const Time before = BootClock::now();
    if (!queue_.Next(&tag, &ok)) {
      MutexLock lock(mutex_);
      over_ = true;
      parked_turn_.NotifyAll();
      watch_turn_.NotifyAll();
      return;
    }
    const Time now = BootClock::now();
    in_a_row_ = now - before < kWasThere ? in_a_row_ + 1 : 0;
    BeginHandling(now, in_a_row_ >= kBacklog);
    static_cast<Completion*>(tag)->Complete(ok);
  } while (EndHandling(turn));
}

void CallLoop::BeginHandling(Time now, bool backlog) {
  Condition* wake = nullptr;
  {
    MutexLock lock(mutex_);
    last_handled_ = now;
    handling_since_ = now;
    if (backlog) {
      nobody_reads_ = true;
      ++turn_;
      if (parked_ > (watched_ ? 1 : 0)) {
        wake = &parked_turn_;
      } else if (parked_ > 0) {
        wake = &watch_turn_;
      } else if (running_ < kMostThreads) {
        AddThread();
      }
    } else if (watcher_sleeps_) {
      wake = &watch_turn_;
    }
  }
  // Without the lock, which the woken thread needs first.
  if (wake != nullptr) wake->NotifyOne();
}

bool CallLoop::EndHandling(std::uint64_t turn) {
  MutexLock lock(mutex_);
  if (turn != turn_) return false;
  handling_since_ = kNever;
  return true;
}

void CallLoop::Join() {
  MutexLock lock(mutex_);
  while (running_ > 0) ended_.Wait(mutex_);
}

}  // namespace gpulease::rpc
