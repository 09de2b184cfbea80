// SPDX-License-Identifier: Apache-2.0
//
// Eventually: how a test waits for what other processes do. It asks again and again, up to a
// deadline that only a failure meets.
#pragma once

#include <chrono>
#include <functional>

namespace gpulease::e2e {

inline constexpr std::chrono::seconds kPatience{30};

// True as soon as it is so; false when `patience` is over.
bool Eventually(const std::function<bool()>& is_so, std::chrono::milliseconds patience = kPatience);

}  // namespace gpulease::e2e
