// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/event_loop.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"

namespace gpulease::peers {
namespace {

using IoCallback = std::function<void(std::uint32_t)>;
using PlainCallback = std::function<void()>;

template <typename Callback>
void Own(sd_event_source* source, Callback callback) {
  sd_event_source_set_userdata(source, new Callback(std::move(callback)));
  // Runs when the last reference is gone, that is after the callback that destroys its own source
  // has returned.
  sd_event_source_set_destroy_callback(source,
                                       [](void* data) { delete static_cast<Callback*>(data); });
}

}  // namespace

EventLoop::EventLoop() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  GPULEASE_CHECK(sd_event_new(&event_) >= 0, "sd_event_new");
  GPULEASE_CHECK(wake_.get() >= 0, "eventfd");
  wake_source_ = WatchDescriptor(wake_.get(), EPOLLIN, [this](std::uint32_t) { RunPosted(); });
}

EventLoop::~EventLoop() {
  wake_source_.reset();
  sd_event_unref(event_);
}

EventLoop::Source EventLoop::WatchDescriptor(int fd, std::uint32_t events, IoCallback callback) {
  sd_event_source* source = nullptr;
  const int result = sd_event_add_io(
      event_, &source, fd, events,
      [](sd_event_source*, int, std::uint32_t revents, void* data) {
        (*static_cast<IoCallback*>(data))(revents);
        return 0;
      },
      nullptr);
  GPULEASE_CHECK(result >= 0, "sd_event_add_io");
  Own(source, std::move(callback));
  return Source(source);
}

void EventLoop::ChangeEvents(const Source& source, std::uint32_t events) {
  GPULEASE_CHECK(sd_event_source_set_io_events(source.get(), events) >= 0,
                 "sd_event_source_set_io_events");
}

EventLoop::Source EventLoop::WatchSignal(int signal, PlainCallback callback) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  GPULEASE_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0, "pthread_sigmask");
  sd_event_source* source = nullptr;
  const int result = sd_event_add_signal(
      event_, &source, signal,
      [](sd_event_source*, const signalfd_siginfo*, void* data) {
        (*static_cast<PlainCallback*>(data))();
        return 0;
      },
      nullptr);
  GPULEASE_CHECK(result >= 0, "sd_event_add_signal");
  Own(source, std::move(callback));
  return Source(source);
}

EventLoop::Source EventLoop::MakeTimer(PlainCallback callback) {
  sd_event_source* source = nullptr;
  const int result = sd_event_add_time(
      event_, &source, CLOCK_BOOTTIME, UINT64_MAX, 1000,
      [](sd_event_source*, std::uint64_t, void* data) {
        (*static_cast<PlainCallback*>(data))();
        return 0;
      },
      nullptr);
  GPULEASE_CHECK(result >= 0, "sd_event_add_time");
  sd_event_source_set_enabled(source, SD_EVENT_OFF);
  Own(source, std::move(callback));
  return Source(source);
}

void EventLoop::SetTimer(const Source& timer, Time at) {
  if (at == kNever) {
    sd_event_source_set_enabled(timer.get(), SD_EVENT_OFF);
    return;
  }
  const auto since_boot =
      std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch());
  // One microsecond more: the timer must not fire before the nanosecond it was set for.
  sd_event_source_set_time(timer.get(), static_cast<std::uint64_t>(since_boot.count()) + 1);
  sd_event_source_set_enabled(timer.get(), SD_EVENT_ONESHOT);
}

void EventLoop::Post(PlainCallback task) {
  {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(task));
    if (posted_.size() > 1) return;
  }
  const std::uint64_t one = 1;
  // The counter cannot overflow, and a full one would wake the loop all the same.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void EventLoop::RunPosted() {
  std::uint64_t count;
  [[maybe_unused]] const ssize_t size = read(wake_.get(), &count, sizeof count);
  std::vector<PlainCallback> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(posted_);
  }
  for (PlainCallback& task : tasks) task();
}

void EventLoop::Run() { GPULEASE_CHECK(sd_event_loop(event_) >= 0, "sd_event_loop"); }
void EventLoop::RunReady() {
  int served;
  do {
    served = sd_event_run(event_, 0);
    GPULEASE_CHECK(served >= 0, "sd_event_run");
  } while (served > 0);
}
void EventLoop::Exit() { sd_event_exit(event_, 0); }

}  // namespace gpulease::peers
