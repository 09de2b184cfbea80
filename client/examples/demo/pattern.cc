// SPDX-License-Identifier: Apache-2.0
#include "client/examples/demo/pattern.h"

#include <cstring>

namespace gpulease::demo {
namespace {

// splitmix64: every word differs from its neighbours in about half of its bits.
std::uint64_t Word(int origin, std::uint64_t index) {
  std::uint64_t z = (static_cast<std::uint64_t>(origin + 1) << 48) + index + 1;
  z *= 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

void FillPattern(std::span<std::byte> bytes, int origin) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(std::uint64_t); ++i) {
    const std::uint64_t word = Word(origin, i);
    std::memcpy(bytes.data() + i * sizeof word, &word, sizeof word);
  }
}

std::uint64_t CountWrongBytes(std::span<const std::byte> bytes, int origin) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < bytes.size() / sizeof(std::uint64_t); ++i) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
    for (std::uint64_t differs = word ^ Word(origin, i); differs != 0; differs >>= 8) {
      wrong += (differs & 0xff) != 0;
    }
  }
  return wrong;
}

}  // namespace gpulease::demo
