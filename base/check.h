// SPDX-License-Identifier: Apache-2.0
//
// GPULEASE_CHECK: a broken invariant ends the process with a line that names it. For what cannot
// happen unless the code is wrong; what a peer, a driver or a machine can do wrong is an Error.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace gpulease {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition,
                                     const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, message.c_str());
  std::abort();
}

}  // namespace gpulease

#define GPULEASE_CHECK(condition, message) \
  ((condition) ? static_cast<void>(0)      \
               : ::gpulease::CheckFailed(__FILE__, __LINE__, #condition, (message)))
