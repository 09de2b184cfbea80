// SPDX-License-Identifier: Apache-2.0
//
// ForkedProgram: a process of its own that runs a function of the test: what it says comes back
// line by line. For the SDK in several processes; the test's own process must not have used CUDA,
// which does not live through a fork.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "base/unique_fd.h"

namespace gpulease::e2e {

class ForkedProgram {
 public:
  // The other end, in the process.
  class Leader {
   public:
    explicit Leader(int socket) : socket_(socket) {}
    void Say(const std::string& text) const;
    // The next thing that the test tells. Ends the process when the test is over.
    std::string Await() const;

   private:
    int socket_;
  };

  // What `work` throws is said as "error CODE REASON: TEXT"; then the process ends.
  explicit ForkedProgram(const std::function<void(Leader&)>& work);
  // Kills it, if it still runs.
  ~ForkedProgram();
  ForkedProgram(const ForkedProgram&) = delete;
  ForkedProgram& operator=(const ForkedProgram&) = delete;

  void Tell(const std::string& text) const;
  // What it says next; "ended" when it has ended, "silent" when nothing comes for long.
  std::string Hear() const;
  // Kills it and waits for its end.
  void Kill();
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
};

}  // namespace gpulease::e2e
