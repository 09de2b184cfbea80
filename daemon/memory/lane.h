// SPDX-License-Identifier: Apache-2.0
//
// Lane: where the slow things of one GPU (or of the host's memory) are done, in order, off every
// request's path: chunks closed, waiting grants made, the driver's view read. A driver call that
// never returns blocks its lane and no other.
//
// Beside its thread a lane has a gate: who makes chunks or reads the driver's view holds it, so
// that no view is taken half-way through a making. A request makes its chunks on its own thread
// when the gate is free.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace gpulease::memory {

class Lane {
 public:
  // `observe` is called on the lane's thread when Observe() asked for it or the time it last
  // returned has come; kNever: not before it is asked for.
  Lane(std::string name, unsigned threads, std::function<Time()> observe);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void Post(std::function<void()> job);
  // Runs it `delay` later, with others that came meanwhile, or when Hurry() is called.
  void PostLater(std::function<void()> job, Duration delay);
  void Hurry();
  // Calls `observe` at `at` or before.
  void ObserveAt(Time at);
  // Waits until the jobs in progress are done, those not begun are dropped. Gives up on a job that
  // does not return within `bound`, and leaves its thread behind: false then.
  bool Stop(Duration bound);

  // The gate.
  void Enter();
  bool TryEnter(Duration most);
  void Leave();

  // Since when the gate or a job has been at the same step; empty when nothing is going on.
  std::optional<Time> BusySince() const;
  const std::string& name() const { return name_; }

 private:
  // Shared with the threads, so that one that hangs for ever outlives the Lane without harm.
  struct State {
    Mutex mutex;
    Condition wake;
    std::deque<std::function<void()>> jobs GPULEASE_GUARDED_BY(mutex);
    std::deque<std::function<void()>> later GPULEASE_GUARDED_BY(mutex);
    Time later_at GPULEASE_GUARDED_BY(mutex) = kNever;  // of all of `later`
    std::function<Time()> observe GPULEASE_GUARDED_BY(mutex);
    Time observe_at GPULEASE_GUARDED_BY(mutex) = kNever;
    bool stopping GPULEASE_GUARDED_BY(mutex) = false;
    unsigned running GPULEASE_GUARDED_BY(mutex) = 0;          // threads
    std::vector<Time> busy_since GPULEASE_GUARDED_BY(mutex);  // by thread; kNever: idle
    bool gate_taken GPULEASE_GUARDED_BY(mutex) = false;
    Time gate_since GPULEASE_GUARDED_BY(mutex) = kNever;
    Condition gate;
    Condition done;
  };
  static void Work(const std::shared_ptr<State>& state, unsigned index);

  const std::string name_;
  const std::shared_ptr<State> state_;
};

// Holds the gates of several lanes, in their order.
class Gates {
 public:
  Gates() = default;
  ~Gates() { Leave(); }
  Gates(const Gates&) = delete;
  Gates& operator=(const Gates&) = delete;
  // `lanes` in one order for everybody. With `most`: false, and none held, when one is not free in
  // time.
  bool Enter(std::vector<Lane*> lanes, std::optional<Duration> most);
  void Leave();

 private:
  std::vector<Lane*> held_;
};

}  // namespace gpulease::memory
