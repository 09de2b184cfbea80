// SPDX-License-Identifier: Apache-2.0
//
// Samples: measurements of one thing, and their percentiles. No averages: one slow call hides in
// them.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace gpulease::bench {

class Samples {
 public:
  void Add(double value) { values_.push_back(value); }
  void Add(const Samples& others);
  std::size_t count() const { return values_.size(); }
  // The smallest value that `percent` of the samples do not exceed; 0 when there are none.
  double Percentile(double percent) const;
  double p50() const { return Percentile(50); }

 private:
  std::vector<double> values_;
};

class Stopwatch {
 public:
  double micros() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_)
        .count();
  }
  // The time since the start or the last lap.
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    const double lap = std::chrono::duration<double, std::micro>(now - start_).count();
    start_ = now;
    return lap;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace gpulease::bench
