// SPDX-License-Identifier: Apache-2.0
//
// CallLoop: the threads that serve gRPC's completion queue.
//
// One queue for everything, so that the thread that reads a request from the socket also runs its
// handler: with gRPC's callback interface, or a second queue, each call crosses to another thread
// first (measured: 75 to 90 µs for an empty call instead of 40 to 55). And one thread reads: with a
// second in the queue, gRPC wakes it at every event to be the next, on a processor that has fallen
// asleep (measured on an H200's host, five runs: 90 to 195 µs for GetNode instead of 35 to 50).
//
// Handlers may take their time all the same: another thread reads on when one takes longer than
// kPatience, and, while requests come faster than they are served, before each handler. So no call
// waits for what another's handler waits for longer than about twice kPatience.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <optional>
#include <thread>

#include "base/clock.h"
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
  explicit CallLoop(grpc::CompletionQueue& queue) : queue_(queue) {}
  ~CallLoop() { Join(); }
  CallLoop(const CallLoop&) = delete;
  CallLoop& operator=(const CallLoop&) = delete;

  void Start();
  // Returns when the queue was shut down and is empty.
  void Join();

 private:
  // A grant of one chunk takes 50 to 100 µs.
  static constexpr Duration kPatience = std::chrono::microseconds(500);
  // The thread that looks sleeps when nothing was handled for so long; to wake it costs the next
  // call some microseconds.
  static constexpr Duration kLooksOn = std::chrono::milliseconds(50);
  // An event that was there within so little was waiting already; after so many in a row (two a
  // call) requests come faster than one thread serves them.
  static constexpr Duration kWasThere = std::chrono::microseconds(3);
  static constexpr unsigned kBacklog = 16;
  static constexpr unsigned kMostThreads = 128;
  static constexpr unsigned kMostParked = 4;

  void Work();
  // Until another thread reads, or over.
  void Read(std::uint64_t turn);
  // Waits until this thread is to read: which turn it has. None when there is nothing more to read,
  // or others enough stand by.
  std::optional<std::uint64_t> TakeReading();
  // One look after the thread that reads, from one that stands by; takes the reading from it when
  // its handler takes long.
  void Watch() GPULEASE_REQUIRES(mutex_);
  void BeginHandling(Time now, bool backlog);
  // False: another thread reads by now.
  bool EndHandling(std::uint64_t turn);
  void AddThread() GPULEASE_REQUIRES(mutex_);

  grpc::CompletionQueue& queue_;
  unsigned in_a_row_ = 0;  // events that were there at once; of the thread that reads

  Mutex mutex_;
  Condition parked_turn_;  // of those that stand by without watching
  Condition watch_turn_;   // of the one that watches
  Condition ended_;
  bool nobody_reads_ GPULEASE_GUARDED_BY(mutex_) = true;
  bool over_ GPULEASE_GUARDED_BY(mutex_) = false;
  std::uint64_t turn_ GPULEASE_GUARDED_BY(mutex_) = 0;        // of reading; rises
  Time handling_since_ GPULEASE_GUARDED_BY(mutex_) = kNever;  // the thread that reads
  Time last_handled_ GPULEASE_GUARDED_BY(mutex_) = Time();
  bool watched_ GPULEASE_GUARDED_BY(mutex_) = false;
  bool watcher_sleeps_ GPULEASE_GUARDED_BY(mutex_) = false;
  unsigned parked_ GPULEASE_GUARDED_BY(mutex_) = 0;  // the one that watches included
  unsigned running_ GPULEASE_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpulease::rpc
