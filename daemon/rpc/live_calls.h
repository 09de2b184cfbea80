// SPDX-License-Identifier: Apache-2.0
//
// LiveCalls: how many call objects there are: one a method that listens for the next, and one for
// each call in progress. gRPC's queue must not be shut down before the last of them has gone: one
// that is answered late would begin what the queue does not take any more, and end the process.
#pragma once

#include <cstddef>

#include "base/clock.h"
#include "base/mutex.h"

namespace gpulease::rpc {

// Threads: any.
class LiveCalls {
 public:
  void Add() {
    MutexLock lock(mutex_);
    ++count_;
  }
  void Remove() {
    MutexLock lock(mutex_);
    --count_;
    fewer_.NotifyAll();
  }
  std::size_t count() {
    MutexLock lock(mutex_);
    return count_;
  }
  // Returns once there are at most `most`, or after `bound`.
  void Await(std::size_t most, Duration bound) {
    const Time until = After(BootClock::now(), bound);
    MutexLock lock(mutex_);
    while (count_ > most) {
      const Duration left = until - BootClock::now();
      if (left <= Duration::zero()) return;
      fewer_.WaitFor(mutex_, left);
    }
  }
  void AwaitNone() {
    MutexLock lock(mutex_);
    while (count_ > 0) fewer_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  Condition fewer_;
  std::size_t count_ GPULEASE_GUARDED_BY(mutex_) = 0;
};

// A member of each call object.
class LiveCall {
 public:
  explicit LiveCall(LiveCalls& calls) : calls_(calls) { calls_.Add(); }
  ~LiveCall() { calls_.Remove(); }
  LiveCall(const LiveCall&) = delete;
  LiveCall& operator=(const LiveCall&) = delete;

 private:
  LiveCalls& calls_;
};

}  // namespace gpulease::rpc
