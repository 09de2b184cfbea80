// SPDX-License-Identifier: Apache-2.0
#include "daemon/ledger/id_sequence.h"

namespace gpulease::ledger {
namespace {

constexpr unsigned kHalfBits = 27;
constexpr std::uint64_t kHalfMask = (std::uint64_t{1} << kHalfBits) - 1;
constexpr std::uint64_t kEnd = std::uint64_t{1} << 53;
constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;

// The finaliser of splitmix64.
std::uint64_t Mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

IdSequence::IdSequence(std::uint64_t seed) {
  for (std::uint64_t& key : keys_) key = Mix(seed += kGolden);
}

std::uint64_t IdSequence::Permute(std::uint64_t value) const {
  std::uint64_t left = value >> kHalfBits;
  std::uint64_t right = value & kHalfMask;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t next = left ^ (Mix(right ^ key) & kHalfMask);
    left = right;
    right = next;
  }
  return left << kHalfBits | right;
}

std::uint64_t IdSequence::Next() {
  std::uint64_t id;
  do {
    id = drawn_++ % kEnd;
    // Walking the cycle from inside the range comes back into the range, and to a number of its
    // own.
    do id = Permute(id);
    while (id >= kEnd);
  } while (id == 0);
  return id;
}

}  // namespace gpulease::ledger
