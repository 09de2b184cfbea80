// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/lane.h"

#include <pthread.h>

#include <algorithm>

namespace gpulease::memory {

Lane::Lane(std::string name, unsigned threads, std::function<Time()> observe)
    : name_(std::move(name)), state_(std::make_shared<State>()) {
  MutexLock lock(state_->mutex);
  state_->observe = std::move(observe);
  state_->running = threads;
  state_->busy_since.assign(threads, kNever);
  for (unsigned i = 0; i < threads; ++i) {
    std::thread thread([state = state_, i] { Work(state, i); });
    pthread_setname_np(thread.native_handle(), name_.substr(0, 15).c_str());
    // Joined by counting: a thread that hangs in the driver must not keep the daemon from ending.
    thread.detach();
  }
}

Lane::~Lane() { Stop(std::chrono::seconds(1)); }

// The thread is woken without the lock, which it needs first.

void Lane::Post(std::function<void()> job) {
  {
    MutexLock lock(state_->mutex);
    state_->jobs.push_back(std::move(job));
  }
  state_->wake.NotifyOne();
}

void Lane::PostLater(std::function<void()> job, Duration delay) {
  {
    MutexLock lock(state_->mutex);
    state_->later.push_back(std::move(job));
    if (state_->later_at != kNever) return;
    state_->later_at = After(BootClock::now(), delay);
  }
  state_->wake.NotifyOne();
}

void Lane::Hurry() {
  {
    MutexLock lock(state_->mutex);
    if (state_->later.empty()) return;
    state_->later_at = Time();
  }
  state_->wake.NotifyOne();
}

void Lane::ObserveAt(Time at) {
  {
    MutexLock lock(state_->mutex);
    if (at >= state_->observe_at) return;
    state_->observe_at = at;
  }
  state_->wake.NotifyOne();
}

bool Lane::Stop(Duration bound) {
  const Time until = After(BootClock::now(), bound);
  MutexLock lock(state_->mutex);
  state_->stopping = true;
  state_->wake.NotifyAll();
  while (state_->running > 0) {
    const Time now = BootClock::now();
    if (now >= until) return false;
    state_->done.WaitFor(state_->mutex, until - now);
  }
  return true;
}

void Lane::Enter() {
  MutexLock lock(state_->mutex);
  while (state_->gate_taken) state_->gate.Wait(state_->mutex);
  state_->gate_taken = true;
  state_->gate_since = BootClock::now();
}

bool Lane::TryEnter(Duration most) {
  MutexLock lock(state_->mutex);
  if (state_->gate_taken) {
    const Time until = After(BootClock::now(), most);
    while (state_->gate_taken) {
      const Time now = BootClock::now();
      if (now >= until) return false;
      state_->gate.WaitFor(state_->mutex, until - now);
    }
  }
  state_->gate_taken = true;
  state_->gate_since = BootClock::now();
  return true;
}

void Lane::Leave() {
  {
    MutexLock lock(state_->mutex);
    state_->gate_taken = false;
    state_->gate_since = kNever;
  }
  state_->gate.NotifyOne();
}

std::optional<Time> Lane::BusySince() const {
  MutexLock lock(state_->mutex);
  Time oldest = state_->gate_since;
  for (const Time since : state_->busy_since) oldest = std::min(oldest, since);
  return oldest == kNever ? std::nullopt : std::optional(oldest);
}

void Lane::Work(const std::shared_ptr<State>& shared, unsigned index) {
  State& state = *shared;
  state.mutex.Lock();
  while (!state.stopping) {
    std::function<void()> job;
    bool observe = false;
    if (state.later_at != kNever && BootClock::now() >= state.later_at) {
      for (std::function<void()>& due : state.later) state.jobs.push_back(std::move(due));
      state.later.clear();
      state.later_at = kNever;
    }
    if (!state.jobs.empty()) {
      job = std::move(state.jobs.front());
      state.jobs.pop_front();
    } else {
      const Time now = BootClock::now();
      const Time next = std::min(state.observe_at, state.later_at);
      if (next == kNever) {
        state.wake.Wait(state.mutex);
        continue;
      }
      if (now < next) {
        state.wake.WaitFor(state.mutex, next - now);
        continue;
      }
      if (now < state.observe_at) continue;
      observe = true;
      state.observe_at = kNever;
    }
    state.busy_since[index] = BootClock::now();
    const std::function<Time()> look = observe ? state.observe : nullptr;
    state.mutex.Unlock();
    Time next = kNever;
    if (observe) {
      next = look();
    } else {
      job();
      job = nullptr;
    }
    state.mutex.Lock();
    state.busy_since[index] = kNever;
    state.observe_at = std::min(state.observe_at, next);
  }
  --state.running;
  state.jobs.clear();
  state.later.clear();
  state.done.NotifyAll();
  state.mutex.Unlock();
}

bool Gates::Enter(std::vector<Lane*> lanes, std::optional<Duration> most) {
  for (Lane* const lane : lanes) {
    if (!most) {
      lane->Enter();
    } else if (!lane->TryEnter(*most)) {
      Leave();
      return false;
    }
    held_.push_back(lane);
  }
  return true;
}

void Gates::Leave() {
  for (Lane* const lane : held_) lane->Leave();
  held_.clear();
}

}  // namespace gpulease::memory
