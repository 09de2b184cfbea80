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
  // Wants one without the GPU, or with it again; `shown` are those that the driver shows now.
  void Retire(const state::RetiredGpu& gpu, const std::vector<std::string>& shown);
  void Return(const std::string& uuid, const std::vector<std::string>& shown);
  bool wanted() const { return !why_.empty(); }
  bool due() const { return due_; }
  const std::string& why() const { return why_; }
  // What is left to the next image.
  Continuation& next() { return next_; }

 private:
  void Serve(const std::vector<std::string>& shown);
  void Try();

  peers::EventLoop& loop_;
  Continuation next_;
  const std::function<bool()> harmless_;
  std::string why_;
  bool due_ = false;
  peers::EventLoop::Source timer_;
};

}  // namespace gpulease::startup
