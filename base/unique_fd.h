// SPDX-License-Identifier: Apache-2.0
//
// UniqueFd: the owner of one file descriptor. It closes what it owns, once, and never copies it by
// accident: Duplicate() is the only way to a second owner.
#pragma once

#include <utility>

namespace gpulease {

// Owns a descriptor or nothing (-1). Movable; not thread-safe, like an int.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Gives the descriptor to the caller, who closes it.
  int Release() { return std::exchange(fd_, -1); }
  // Closes what it owns and takes `fd`. errno is left as it was, so that it can stand on error
  // paths.
  void Reset(int fd = -1);
  // A second descriptor for the same open file, close-on-exec; empty with errno set when the limit
  // is reached.
  UniqueFd Duplicate() const;

 private:
  int fd_ = -1;
};

}  // namespace gpulease
