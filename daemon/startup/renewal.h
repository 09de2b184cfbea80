// SPDX-License-Identifier: Apache-2.0
//
// Renewal: the daemon's next process image, wanted and, once it may be, due.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/peers/event_loop.h"
#include "daemon/startup/continuation.h"

namespace gpulease::startup {

// Threads: the loop's.
class Renewal {
 public:
  // `harmless`: whether a renewal now would take nobody's memory away. It is asked again and again
  // while a renewal is wanted.
  Renewal(peers::EventLoop& loop, Continuation next, std::function<bool()> harmless);

  // Wants one, for `why`. The loop ends once it is due: at once, or when it has become harmless.
  void Want(const std::string& why);
  // The next image is to have these GPUs retired, and to serve the others of `known`, which are
  // those that the driver shows now and those that were retired.
  void SetRetired(std::vector<state::RetiredGpu> retired, const std::vector<std::string>& known);
  bool wanted() const { return !why_.empty(); }
  bool due() const { return due_; }
  const std::string& why() const { return why_; }
  // What is left to the next image.
  Continuation& next() { return next_; }

 private:
  void Try();

  peers::EventLoop& loop_;
  Continuation next_;
  const std::function<bool()> harmless_;
  std::string why_;
  bool due_ = false;
  peers::EventLoop::Source timer_;
};

}  // namespace gpulease::startup
