// SPDX-License-Identifier: Apache-2.0
//
// CallLoop: the threads that serve gRPC's completion queue.
//
// One queue for everything, so that the thread that reads a request from the socket also runs its
// handler: with gRPC's callback interface, or a second queue, each call crosses to another thread
// first (measured: 75 to 90 µs for an empty call instead of 40 to 55). Handlers may take their
// time: a thread more is started whenever none is left waiting.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace gpulease::rpc {

// What a completion queue's tag points to.
class Completion {
 public:
  virtual ~Completion() = default;
  // Something asked for is done (`ok`), or cannot be done any more. May end the object.
  virtual void Complete(bool ok) = 0;
};

class CallLoop {
 public:
  explicit CallLoop(grpc::ServerCompletionQueue& queue) : queue_(queue) {}
  ~CallLoop() { Join(); }
  CallLoop(const CallLoop&) = delete;
  CallLoop& operator=(const CallLoop&) = delete;

  void Start();
  // Returns when the queue was shut down and is empty.
  void Join();

 private:
  static constexpr unsigned kMostThreads = 128;
  static constexpr unsigned kMostWaiting = 4;
  static constexpr unsigned kLeastWaiting = 2;

  void Work();
  void AddThread() GPULEASE_REQUIRES(mutex_);

  grpc::ServerCompletionQueue& queue_;
  Mutex mutex_;
  unsigned waiting_ GPULEASE_GUARDED_BY(mutex_) = 0;
  unsigned running_ GPULEASE_GUARDED_BY(mutex_) = 0;
  Condition ended_;
};

}  // namespace gpulease::rpc
