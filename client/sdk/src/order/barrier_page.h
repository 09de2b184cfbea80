// SPDX-License-Identifier: Apache-2.0
//
// BarrierPage: the memory of a barrier, and how its participants move in it. It knows no lease and
// no daemon.
//
// A round is one word: its number, and in the low bits why and by whom it was broken. Who arrives
// last raises the number; who breaks it sets the low bits. As it is one word, a round has either
// ended for all of its participants or for none, whoever dies when.
//
// The page is written by whoever may: each value that is read is bounded before it is used, and
// what does not add up breaks the barrier.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "client/sdk/src/order/bell.h"

namespace gpulease {

inline constexpr unsigned kMostParticipants = 256;

class BarrierPage {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Break : std::uint8_t {
    kNone = 0,
    kDied = 1,      // somebody who had it open died
    kLeft = 2,      // slot: who left
    kTimedOut = 3,  // slot: whose wait was over
    kNonsense = 4,  // the page holds what no participant writes
    kLost = 5       // slot: whose session with the daemon is over, so that nobody hears of deaths
  };
  struct Broken {
    Break why = Break::kNone;
    unsigned slot = 0;
  };
  // What the memory is, as far as it says.
  enum class Form { kEmpty, kForeign, kOtherVersion, kBarrier };
  struct Participant {
    std::uint64_t session = 0;
    std::uint32_t pid = 0;
  };

  // `memory` has at least kOrderPageBytes, is mapped for writing, and outlives this.
  explicit BarrierPage(std::byte* memory);

  // Makes a barrier of memory that reads as zeros. Participants are 1 to kMostParticipants.
  void Lay(unsigned participants);
  Form form() const;
  unsigned participants() const;  // 0: nonsense
  unsigned joined() const;
  // A slot for one more participant; nothing when all are taken.
  std::optional<unsigned> Join(const Participant& participant);
  Participant Of(unsigned slot) const;

  // Takes part in one round. True: it has ended, and `last` says who arrived last; false: the
  // barrier is broken. `look` is called about once a second while it sleeps; what it gives breaks
  // the barrier.
  bool Wait(unsigned slot, Clock::time_point until, bool& last,
            const std::function<std::optional<Break>()>& look);
  // Whether and why it is broken. A death that the daemon noticed breaks it here and now.
  Broken broken();
  // Breaks it for all, unless it is broken.
  void BreakUp(Break why, unsigned slot);
  unsigned arrived() const;

 private:
  struct Layout;
  static constexpr std::uint32_t kRoundShift = 12;  // below: 8 bits of slot, 4 bits of Break
  static constexpr std::uint32_t kLowBits = (1u << kRoundShift) - 1;

  static std::uint32_t Bits(Break why, unsigned slot) {
    return (slot & 0xff) << 4 | static_cast<std::uint32_t>(why);
  }
  static Broken Parse(std::uint32_t round);
  void Sleep(std::uint32_t mine, Clock::time_point until, unsigned slot,
             const std::function<std::optional<Break>()>& look);

  Layout* layout_;
  Bell bell_;
  Clock::duration spin_{};
};

}  // namespace gpulease
