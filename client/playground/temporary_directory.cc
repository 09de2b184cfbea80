// SPDX-License-Identifier: Apache-2.0
#include "client/playground/temporary_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace gpulease::playground {

TemporaryDirectory::TemporaryDirectory(const std::string& prefix)
    : path_("/tmp/" + prefix + "XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr) {
    throw std::runtime_error("mkdtemp " + path_ + ": " + std::strerror(errno));
  }
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;  // what is left of it harms nobody
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace gpulease::playground
