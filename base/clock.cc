// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <ctime>

namespace gpulease {

Time BootClock::now() {
  timespec spec{};
  clock_gettime(CLOCK_BOOTTIME, &spec);
  return Time(std::chrono::seconds(spec.tv_sec) + std::chrono::nanoseconds(spec.tv_nsec));
}

}  // namespace gpulease
