// SPDX-License-Identifier: Apache-2.0
//
// EventLoop: systemd's sd-event with owners: descriptors, signals and one timer, called back on the
// thread that runs it.
#pragma once

#include <systemd/sd-event.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace gpulease::peers {

class EventLoop {
 public:
  struct Detach {
    void operator()(sd_event_source* source) const { sd_event_source_disable_unref(source); }
  };
  // Watches until destroyed; destroy it before its descriptor is closed. It may be destroyed in its
  // own callback.
  using Source = std::unique_ptr<sd_event_source, Detach>;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls back with the EPOLL… bits that are set. Loop's thread only.
  Source WatchDescriptor(int fd, std::uint32_t events, std::function<void(std::uint32_t)> callback);
  static void ChangeEvents(const Source& source, std::uint32_t events);
  // Blocks the signal for the calling thread and those it starts; calls back when it comes.
  Source WatchSignal(int signal, std::function<void()> callback);
  // Calls back once at the time last set with SetTimer. Loop's thread only.
  Source MakeTimer(std::function<void()> callback);
  static void SetTimer(const Source& timer, Time at);

  // Runs `task` on the loop's thread, soon. From any thread.
  void Post(std::function<void()> task);
  // Runs until Exit().
  void Run();
  // Serves what is there already, and returns.
  void RunReady();
  void Exit();

 private:
  void RunPosted();

  sd_event* event_ = nullptr;
  UniqueFd wake_;
  Source wake_source_;
  Mutex mutex_;
  std::vector<std::function<void()>> posted_ GPULEASE_GUARDED_BY(mutex_);
};

}  // namespace gpulease::peers
