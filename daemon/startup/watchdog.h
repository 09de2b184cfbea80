// SPDX-License-Identifier: Apache-2.0
//
// Watchdog: feeds the service manager's watchdog, as long as the daemon's parts answer.
//
// Each time, a question goes the way that a request goes, from the loop to a thread that serves
// calls, through the broker's lock, and back to the loop. Only when it has arrived is the watchdog
// fed: a loop, a lock or a queue of calls that hangs leaves it hungry. A driver call that hangs is
// on no part of this way.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "daemon/peers/event_loop.h"

namespace gpulease::startup {

// Threads: the loop's.
class Watchdog {
 public:
  // `question` calls what it is given, from any thread, once it is answered; `feed` is called from
  // the loop.
  using Question = std::function<void(std::function<void()> answered)>;
  Watchdog(peers::EventLoop& loop, Duration interval, Question question,
           std::function<void()> feed);

 private:
  void Ask();

  struct State {
    bool asked = false;
    std::function<void()> feed;
  };
  peers::EventLoop& loop_;
  const Duration pause_;
  const Question question_;
  // Answers may come when the Watchdog is gone.
  const std::shared_ptr<State> state_;
  peers::EventLoop::Source timer_;
};

// How often the service manager wants to be told, if it does.
std::optional<Duration> WatchdogInterval();
void FeedWatchdog();

}  // namespace gpulease::startup
