// SPDX-License-Identifier: Apache-2.0
//
// Report: what was measured, as a table for people or as JSON for programs. Both say the same.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "client/bench/samples.h"

namespace gpulease::bench {

enum class Unit { kMicros, kMillis, kPerSecond, kGigabytesPerSecond };

class Report {
 public:
  // Of the machine: "gpu", "NVIDIA H200".
  void AddFact(const std::string& key, const std::string& value);
  // `section` is what --filter knows; `size_bytes` is 0 where no size belongs to it.
  void Add(const std::string& section, const std::string& name, std::uint64_t size_bytes, Unit unit,
           const Samples& samples);
  // `numerator` / `denominator`, and what it says.
  void AddRatio(const std::string& section, const std::string& name, std::uint64_t size_bytes,
                double numerator, double denominator);

  void PrintText(std::ostream& out) const;
  void PrintJson(std::ostream& out) const;

 private:
  struct Measurement {
    std::string section;
    std::string name;
    std::uint64_t size_bytes;
    Unit unit;
    double p50;
    double p99;  // of what is better when it is more: what 99 of 100 reach
    std::size_t count;
  };
  struct Ratio {
    std::string section;
    std::string name;
    std::uint64_t size_bytes;
    double value;
  };

  std::vector<std::pair<std::string, std::string>> facts_;
  std::vector<Measurement> measurements_;
  std::vector<Ratio> ratios_;
};

}  // namespace gpulease::bench
