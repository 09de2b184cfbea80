// SPDX-License-Identifier: Apache-2.0
//
// IdSequence: numbers below 2^53 that never repeat and do not show how many were drawn before.
//
// A keyed permutation of the counter (a Feistel network of 2 x 27 bits, walked until the result is
// below 2^53), so that no table of used numbers is needed and one id does not tell the next.
#pragma once

#include <array>
#include <cstdint>

namespace gpulease::ledger {

class IdSequence {
 public:
  explicit IdSequence(std::uint64_t seed);
  std::uint64_t Next();

 private:
  std::uint64_t Permute(std::uint64_t value) const;

  std::array<std::uint64_t, 6> keys_;
  std::uint64_t drawn_ = 0;
};

}  // namespace gpulease::ledger
