// SPDX-License-Identifier: Apache-2.0
//
// Process: a program that this one started, and that ends with it at the latest.
//
// It is exec'd at once, so that nothing of CUDA, gRPC or the SDK is taken along, and known by its
// pidfd: a pid that was reused is never signalled.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace gpulease::playground {

// Path of a program or library in the directory of the running program.
std::string BesideMe(const std::string& name);
// The running program.
std::string MyPath();

// Movable. Its destructor kills what still runs, and waits for its end.
class Process {
 public:
  struct Options {
    std::string path;
    std::vector<std::string> arguments;  // without the program's own name
    int channel = -1;                    // becomes descriptor 3 there
    int output = -1;                     // becomes stdout; -1: as here
    int errors = -1;                     // becomes stderr; -1: as here
    int when_parent_dies = 9;            // the signal it gets then
  };
  // Throws std::runtime_error; a program that cannot be executed exits with 127.
  static Process Start(const Options& options);

  Process() = default;
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  explicit operator bool() const { return static_cast<bool>(pidfd_); }
  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable once it is dead
  void Signal(int signal) const;
  // As of waitpid; nothing when it still runs after `timeout`. Throws Interrupted.
  std::optional<int> Wait(std::chrono::milliseconds timeout);

 private:
  void End() noexcept;

  pid_t pid_ = 0;
  UniqueFd pidfd_;  // empty: none, or its end was seen
};

}  // namespace gpulease::playground
