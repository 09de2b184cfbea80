// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/eventually.h"

#include <time.h>

namespace gpulease::e2e {

bool Eventually(const std::function<bool()>& is_so, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    const timespec pause = {.tv_sec = 0, .tv_nsec = 2'000'000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

}  // namespace gpulease::e2e
