// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace gpulease {
namespace {

constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};

}  // namespace

std::string FormatBytes(Bytes bytes) {
  if (bytes < kKiB) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  char text[48];
  std::snprintf(text, sizeof text, "%.1f %s", value, kUnits[unit].data());
  return text;
}

std::optional<Bytes> ParseBytes(std::string_view text) {
  const char* const end = text.data() + text.size();
  Bytes whole = 0;
  auto [rest, error] = std::from_chars(text.data(), end, whole);
  if (error != std::errc() || rest == text.data()) return std::nullopt;
  double fraction = 0;
  if (rest != end && *rest == '.') {
    ++rest;
    double scale = 0.1;
    if (rest == end || *rest < '0' || *rest > '9') return std::nullopt;
    for (; rest != end && *rest >= '0' && *rest <= '9'; ++rest, scale /= 10)
      fraction += scale * (*rest - '0');
  }
  while (rest != end && *rest == ' ') ++rest;
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  unsigned shift = 0;
  if (!unit.empty()) {
    std::size_t index = 0;
    while (index < kUnits.size() && kUnits[index] != unit) ++index;
    if (index == kUnits.size()) return std::nullopt;
    shift = static_cast<unsigned>(index) * 10;
  }
  if (shift == 0 && fraction != 0) return std::nullopt;
  if (whole > (~Bytes{0} >> shift)) return std::nullopt;
  const Bytes part =
      static_cast<Bytes>(std::llround(fraction * static_cast<double>(Bytes{1} << shift)));
  return CheckedAdd(whole << shift, part);
}

std::optional<Bytes> RoundUp(Bytes bytes, Bytes unit) {
  const Bytes over = bytes % unit;
  if (over == 0) return bytes;
  return CheckedAdd(bytes, unit - over);
}

}  // namespace gpulease
