// SPDX-License-Identifier: Apache-2.0
//
// TemporaryDirectory: a directory of this process alone (0700), removed with all that is in it.
#pragma once

#include <string>

namespace gpulease::playground {

class TemporaryDirectory {
 public:
  // "/tmp/<prefix>XXXXXX": not below TMPDIR, since a socket's path holds 107 bytes. Throws
  // std::runtime_error.
  explicit TemporaryDirectory(const std::string& prefix);
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gpulease::playground
