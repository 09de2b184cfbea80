// SPDX-License-Identifier: Apache-2.0
//
// What happens to the SDK when its process forks: everything that the child inherits is inert, and
// its descriptors are closed in the child before fork() returns there. A descriptor that lived on
// in a forked worker would keep GPU memory and connections of the parent alive.
//
// Invariant: no lock of the SDK is taken in a child for an object made before the fork; who made
// something compares generations first.
#pragma once

#include <cstdint>
#include <mutex>

#include "base/unique_fd.h"

namespace gpulease {

// How many forks lie between this process and the first one that used the SDK. An object whose
// generation is another one was inherited.
std::uint64_t ForkGeneration();

// While one exists, no other thread forks. For the instants between the birth of a descriptor and
// its LocalFd; short, and nothing that waits.
class ForkHold {
 public:
  ForkHold();
  ~ForkHold();
  ForkHold(const ForkHold&) = delete;
  ForkHold& operator=(const ForkHold&) = delete;
};

// A descriptor that forked children do not have. Movable; not thread-safe, like an int. In a child,
// an inherited one does nothing any more: its number may be somebody else's.
class LocalFd {
 public:
  LocalFd() = default;
  LocalFd(UniqueFd fd, const ForkHold&);
  LocalFd(LocalFd&& other) noexcept;
  LocalFd& operator=(LocalFd&& other) noexcept;
  ~LocalFd() { Reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
  std::uint64_t generation_ = 0;
};

}  // namespace gpulease
