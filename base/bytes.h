// SPDX-License-Identifier: Apache-2.0
//
// Bytes: amounts of memory, how people write them, and sums that cannot wrap around.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpulease {

using Bytes = std::uint64_t;

inline constexpr Bytes kKiB = Bytes{1} << 10;
inline constexpr Bytes kMiB = Bytes{1} << 20;
inline constexpr Bytes kGiB = Bytes{1} << 30;

// "60.0 GiB", "2.0 MiB", "512 B": one decimal from KiB on.
std::string FormatBytes(Bytes bytes);

// Reads "16GiB", "1.5 GiB", "64MiB", "512", "512B" (binary units KiB to TiB; case matters). Empty
// when it is none, or too large for 64 bits.
std::optional<Bytes> ParseBytes(std::string_view text);

// The smallest multiple of `unit` (not zero) that is at least `bytes`; empty when that does not fit
// in 64 bits.
std::optional<Bytes> RoundUp(Bytes bytes, Bytes unit);

// The sum; empty when it does not fit in 64 bits.
inline std::optional<Bytes> CheckedAdd(Bytes a, Bytes b) {
  Bytes sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

}  // namespace gpulease
