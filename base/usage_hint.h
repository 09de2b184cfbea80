// SPDX-License-Identifier: Apache-2.0
//
// Usage hints: what memory is for, and which memory that is. One table: the daemon fills requests
// in by it, gpuleasectl advise prints it, and so does the documentation.
#pragma once

#include <array>
#include <string_view>

namespace gpulease {

// The numbers are those of gpulease.v1.UsageHint.
enum class UsageHint : int {
  kNone = 0,
  kCompute = 1,
  kStaging = 2,
  kBulkStore = 3,
  kShared = 4,
  kCpuStream = 5,
};

struct UsageAdvice {
  enum class Pages { kNone, kAuto, kSmall };
  UsageHint hint;
  std::string_view name;
  std::string_view purpose;
  bool host;      // else device memory
  Pages pages;    // host memory
  bool near_gpu;  // host memory: near the GPU that the request names
  std::string_view placement;
  std::string_view reason;
};

inline constexpr std::array<UsageAdvice, 5> kUsageAdvice = {{
    {UsageHint::kCompute, "compute", "kernels of one GPU read and write it", false,
     UsageAdvice::Pages::kNone, false,
     "on the GPU named, else on the one with the most free memory", "full memory bandwidth"},
    {UsageHint::kStaging, "staging", "copied to or from one GPU", true, UsageAdvice::Pages::kAuto,
     true, "near the GPU named", "the copy does not cross the link between processors"},
    {UsageHint::kBulkStore, "bulk-store", "much that is seldom used, kept at hand", true,
     UsageAdvice::Pages::kAuto, false, "on the NUMA node with the most free memory",
     "GPU memory stays free for what computes"},
    {UsageHint::kShared, "shared", "GPUs of the node and processes without one use the same copy",
     true, UsageAdvice::Pages::kAuto, false, "on the NUMA node with the most free memory",
     "every GPU and every CPU can map it"},
    {UsageHint::kCpuStream, "cpu-stream", "the CPU writes small pieces that a GPU reads at once",
     true, UsageAdvice::Pages::kSmall, true, "near the GPU named",
     "small pages are there at once, and the way to the GPU is short"},
}};

inline const UsageAdvice* FindAdvice(UsageHint hint) {
  for (const UsageAdvice& advice : kUsageAdvice) {
    if (advice.hint == hint) return &advice;
  }
  return nullptr;
}

inline const UsageAdvice* FindAdvice(std::string_view name) {
  for (const UsageAdvice& advice : kUsageAdvice) {
    if (advice.name == name) return &advice;
  }
  return nullptr;
}

}  // namespace gpulease
