// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/order/barrier_page.h"

#include <sched.h>

#include <algorithm>

namespace gpulease {
namespace {

constexpr std::uint64_t kMagic = 0x31524241'45534c47;  // "GLSEABR1"
constexpr std::uint32_t kVersion = 1;
// Longer than a round of processes that run, shorter than it takes to wake one that sleeps is
// worth.
constexpr std::chrono::microseconds kSpin{50};
constexpr unsigned kSpinsBetweenLooksAtTheClock = 64;
constexpr std::chrono::seconds kSlice{1};

unsigned CpusHere() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
}

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// All zeros is a page that nobody has formed yet.
struct BarrierPage::Layout {
  std::atomic<std::uint64_t> magic;  // written last
  std::atomic<std::uint32_t> version;
  std::atomic<std::uint32_t> participants;
  alignas(64) std::atomic<std::uint32_t> round;
  alignas(64) std::atomic<std::uint32_t> arrived;  // in this round
  alignas(64) std::atomic<std::uint32_t> sleepers;
  alignas(64) std::atomic<std::uint32_t> joined;
  alignas(512) std::array<std::atomic<std::uint64_t>, kMostParticipants> sessions;
  std::array<std::atomic<std::uint32_t>, kMostParticipants> pids;
};

BarrierPage::BarrierPage(std::byte* memory)
    : layout_(reinterpret_cast<Layout*>(memory)), bell_(memory) {
  static_assert(sizeof(Layout) <= kOrderPageBytes - 64);
  if (form() == Form::kBarrier && participants() <= CpusHere()) spin_ = kSpin;
}

void BarrierPage::Lay(unsigned participants) {
  layout_->version.store(kVersion, std::memory_order_relaxed);
  layout_->participants.store(participants, std::memory_order_relaxed);
  layout_->magic.store(kMagic, std::memory_order_release);
  if (participants <= CpusHere()) spin_ = kSpin;
}

BarrierPage::Form BarrierPage::form() const {
  const std::uint64_t magic = layout_->magic.load(std::memory_order_acquire);
  if (magic == 0) return Form::kEmpty;
  if (magic != kMagic) return Form::kForeign;
  return layout_->version.load(std::memory_order_relaxed) == kVersion ? Form::kBarrier
                                                                      : Form::kOtherVersion;
}

unsigned BarrierPage::participants() const {
  const std::uint32_t count = layout_->participants.load(std::memory_order_relaxed);
  return count <= kMostParticipants ? count : 0;
}

unsigned BarrierPage::joined() const {
  return std::min(layout_->joined.load(std::memory_order_relaxed), participants());
}

unsigned BarrierPage::arrived() const {
  return std::min(layout_->arrived.load(std::memory_order_relaxed), participants());
}

std::optional<unsigned> BarrierPage::Join(const Participant& participant) {
  std::uint32_t slot = layout_->joined.load(std::memory_order_relaxed);
  do {
    if (slot >= participants()) return std::nullopt;
  } while (!layout_->joined.compare_exchange_weak(slot, slot + 1));
  layout_->pids[slot].store(participant.pid, std::memory_order_relaxed);
  layout_->sessions[slot].store(participant.session, std::memory_order_release);
  return slot;
}

BarrierPage::Participant BarrierPage::Of(unsigned slot) const {
  if (slot >= kMostParticipants) return {};
  return {layout_->sessions[slot].load(std::memory_order_acquire),
          layout_->pids[slot].load(std::memory_order_relaxed)};
}

BarrierPage::Broken BarrierPage::Parse(std::uint32_t round) {
  const std::uint32_t why = round & 0xf;
  if (why > static_cast<std::uint32_t>(Break::kLost)) return {Break::kNonsense, 0};
  return {static_cast<Break>(why), round >> 4 & 0xff};
}

void BarrierPage::BreakUp(Break why, unsigned slot) {
  std::uint32_t round = layout_->round.load(std::memory_order_relaxed);
  do {
    if ((round & kLowBits) != 0) return;
  } while (!layout_->round.compare_exchange_weak(round, round | Bits(why, slot)));
  bell_.Ring();
}

BarrierPage::Broken BarrierPage::broken() {
  if (Bell::Deaths(bell_.Read()) != 0) BreakUp(Break::kDied, 0);
  return Parse(layout_->round.load(std::memory_order_acquire));
}

bool BarrierPage::Wait(unsigned slot, Clock::time_point until, bool& last,
                       const std::function<std::optional<Break>()>& look) {
  last = false;
  if (Bell::Deaths(bell_.Read()) != 0) BreakUp(Break::kDied, 0);
  const std::uint32_t mine = layout_->round.load(std::memory_order_acquire);
  if ((mine & kLowBits) != 0) return false;
  const unsigned all = participants();
  const std::uint32_t place = layout_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (all == 0 || place > all) {
    BreakUp(Break::kNonsense, slot);
    return false;
  }
  if (place == all) {
    // Before the round ends: who goes on at once counts for the next one.
    layout_->arrived.store(0, std::memory_order_relaxed);
    std::uint32_t expected = mine;
    if (!layout_->round.compare_exchange_strong(expected, mine + (1u << kRoundShift))) {
      BreakUp(Break::kNonsense, slot);  // unless it is broken, which is what should have failed it
      return false;
    }
    if (layout_->sleepers.load(std::memory_order_seq_cst) != 0) bell_.Ring();
    last = true;
    return true;
  }
  const auto over = [&] { return layout_->round.load(std::memory_order_acquire) != mine; };
  if (spin_ > Clock::duration::zero()) {
    const auto spin = [&] {
      for (unsigned i = 0; i < kSpinsBetweenLooksAtTheClock && !over(); ++i) Pause();
    };
    spin();
    if (!over()) {
      const Clock::time_point end = Clock::now() + spin_;
      while (!over() && Clock::now() < end) spin();
    }
  }
  if (!over()) Sleep(mine, until, slot, look);
  // Broken after it ended: that is for the next round.
  return (layout_->round.load(std::memory_order_acquire) ^ mine) >> kRoundShift != 0;
}

void BarrierPage::Sleep(std::uint32_t mine, Clock::time_point until, unsigned slot,
                        const std::function<std::optional<Break>()>& look) {
  layout_->sleepers.fetch_add(1, std::memory_order_seq_cst);
  Clock::time_point look_at = Clock::now() + kSlice;
  for (;;) {
    const std::uint32_t seen = bell_.Read();
    if (layout_->round.load(std::memory_order_seq_cst) != mine) break;
    const Clock::time_point now = Clock::now();
    std::optional<Break> why;
    if (Bell::Deaths(seen) != 0) {
      why = Break::kDied;
    } else if (now >= until) {
      why = Break::kTimedOut;
    } else if (now >= look_at) {
      why = look();
      look_at = now + kSlice;
    }
    if (why) {
      // Unless the round has ended meanwhile.
      std::uint32_t expected = mine;
      if (layout_->round.compare_exchange_strong(expected, mine | Bits(*why, slot))) bell_.Ring();
      break;
    }
    bell_.Sleep(seen, std::min(until, look_at) - now);
  }
  layout_->sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace gpulease
