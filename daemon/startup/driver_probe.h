// SPDX-License-Identifier: Apache-2.0
//
// DriverProbe: asks, in a process of its own, whether the driver is there and which GPUs it shows.
//
// Of its own, since a process in which cuInit has failed may get the same answer for ever (it does
// after CUDA_ERROR_OPERATING_SYSTEM, driver 580), and one in which it succeeded never sees a GPU
// that comes later.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/peers/event_loop.h"

namespace gpulease::startup {

// The UUIDs of the GPUs that it shows, or what stands against it.
using ProbeResult = Result<std::vector<std::string>>;

// Threads: the loop's.
class DriverProbe {
 public:
  using Callback = std::function<void(ProbeResult)>;

  // `simulated_directory` as in driver::DriverChoice.
  DriverProbe(peers::EventLoop& loop, std::string simulated_directory)
      : loop_(loop), simulated_directory_(std::move(simulated_directory)) {}
  // Does not wait for a probe that is running; it is killed.
  ~DriverProbe();
  DriverProbe(const DriverProbe&) = delete;
  DriverProbe& operator=(const DriverProbe&) = delete;

  // Calls `done` from the loop once the driver has answered. One probe runs at a time.
  void Start(Callback done);
  bool running() const { return pid_ > 0; }
  Time since() const { return since_; }  // of the one that is running

 private:
  void OnEnd();

  peers::EventLoop& loop_;
  const std::string simulated_directory_;
  pid_t pid_ = -1;
  Time since_{};
  UniqueFd answer_;
  UniqueFd pidfd_;
  Callback done_;
  peers::EventLoop::Source end_;
};

// What the other process does: `gpuleased --probe=DIRECTORY`, "-" for the machine's own driver. Its
// exit code.
int RunProbe(const std::string& simulated_directory);

}  // namespace gpulease::startup
