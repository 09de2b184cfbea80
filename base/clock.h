// SPDX-License-Identifier: Apache-2.0
//
// Time as gpulease counts it: nanoseconds since boot, suspended time included (CLOCK_BOOTTIME), so
// that no step of the wall clock ends or prolongs anything. Who needs the time gets it as an
// argument; only executors read a Clock.
#pragma once

#include <chrono>

namespace gpulease {

using Duration = std::chrono::nanoseconds;

// A point in time since boot.
struct BootClock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<BootClock>;
  static constexpr bool is_steady = true;
  static time_point now();
};
using Time = BootClock::time_point;

inline constexpr Time kNever = Time::max();

// `from` + `by`, which stays at kNever instead of wrapping around.
inline Time After(Time from, Duration by) { return by >= kNever - from ? kNever : from + by; }

}  // namespace gpulease
