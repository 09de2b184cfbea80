// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/watchdog.h"

#include <systemd/sd-daemon.h>

namespace gpulease::startup {
namespace {

constexpr int kQuestions = 4;  // in each interval

}  // namespace

Watchdog::Watchdog(peers::EventLoop& loop, Duration interval, Question question,
                   std::function<void()> feed)
    : loop_(loop),
      pause_(interval / kQuestions),
      question_(std::move(question)),
      state_(std::make_shared<State>()) {
  state_->feed = std::move(feed);
  timer_ = loop_.MakeTimer([this] { Ask(); });
  Ask();
}

void Watchdog::Ask() {
  peers::EventLoop::SetTimer(timer_, After(BootClock::now(), pause_));
  if (state_->asked) return;
  state_->asked = true;
  question_([&loop = loop_, weak = std::weak_ptr(state_)] {
    loop.Post([weak] {
      const std::shared_ptr<State> state = weak.lock();
      if (!state) return;
      state->asked = false;
      state->feed();
    });
  });
}

std::optional<Duration> WatchdogInterval() {
  std::uint64_t microseconds = 0;
  if (sd_watchdog_enabled(/*unset_environment=*/0, &microseconds) <= 0) return std::nullopt;
  return std::chrono::microseconds(microseconds);
}

void FeedWatchdog() { sd_notify(0, "WATCHDOG=1"); }

}  // namespace gpulease::startup
