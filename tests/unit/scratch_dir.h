// SPDX-License-Identifier: Apache-2.0
//
// A directory of a test's own, with a path short enough for sockets; gone with all that is in it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace gpulease {

class ScratchDir {
 public:
  ScratchDir() {
    char path[] = "/tmp/gpulease-test-XXXXXX";
    path_ = mkdtemp(path);
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gpulease
