// SPDX-License-Identifier: Apache-2.0
//
// LiveCalls: how many call objects there are. gRPC's queue must not be shut down before the last of
// them has gone: one that is answered late would begin what the queue does not take any more, and
// end the process.
#pragma once

#include <cstddef>

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
    if (--count_ == 0) none_.NotifyAll();
  }
  void AwaitNone() {
    MutexLock lock(mutex_);
    while (count_ > 0) none_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  Condition none_;
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
