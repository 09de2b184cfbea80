// SPDX-License-Identifier: Apache-2.0
//
// Interruption: Ctrl-C and its like as an exception, so that whoever was started or made is stopped
// and removed by the destructors on the way out. Nothing runs in a signal handler.
#pragma once

#include <chrono>
#include <stdexcept>

namespace gpulease::playground {

// Somebody wants the program to end: SIGINT, SIGTERM or SIGHUP.
class Interrupted : public std::runtime_error {
 public:
  explicit Interrupted(int signal);
  int signal() const { return signal_; }

 private:
  int signal_;
};

// From here on those signals wait until one of the functions below looks for them. Before the first
// thread of the process.
void HoldSignals();

// Throws Interrupted when one of them has come.
void ThrowIfInterrupted();

// Whether `descriptor` became readable, or hung up, within `timeout`. Throws Interrupted.
bool WaitReadable(int descriptor, std::chrono::milliseconds timeout);

}  // namespace gpulease::playground
