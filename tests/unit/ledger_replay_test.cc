// SPDX-License-Identifier: Apache-2.0
//
// Seeded days of traffic. GPULEASE_SEED=n runs one seed alone.
#include "tests/unit/ledger_replay.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace gpulease::ledger {
namespace {

// A day of this seed.
Replay DayOf(std::uint64_t seed) {
  return Replay(seed, [random = std::mt19937_64(seed)](std::uint64_t end) mutable {
    return std::uniform_int_distribution<std::uint64_t>(0, end - 1)(random);
  });
}

void PlayDay(std::uint64_t seed, int steps, int every) {
  Replay replay = DayOf(seed);
  for (int step = 0; step < steps; ++step) {
    replay.Step();
    if (step % every == 0) {
      ASSERT_EQ(replay.Check(), "") << "GPULEASE_SEED=" << seed << " step " << step;
    }
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "GPULEASE_SEED=" << seed << " step " << step;
  }
  // The traffic has met what it should meet.
  EXPECT_GT(replay.grants(), 100u) << "GPULEASE_SEED=" << seed;
  EXPECT_GT(replay.queued(), 50u) << "GPULEASE_SEED=" << seed;
  EXPECT_GT(replay.expired(), 10u) << "GPULEASE_SEED=" << seed;
  EXPECT_GT(replay.shorts(), 10u) << "GPULEASE_SEED=" << seed;
  EXPECT_GT(replay.resized(), 20u) << "GPULEASE_SEED=" << seed;
  EXPECT_GT(replay.growths_queued(), 3u) << "GPULEASE_SEED=" << seed;
  EXPECT_GT(replay.merges(), 5u) << "GPULEASE_SEED=" << seed;
  EXPECT_GT(replay.cuts(), 5u) << "GPULEASE_SEED=" << seed;
  EXPECT_GT(replay.pending(), 2u) << "GPULEASE_SEED=" << seed;
  EXPECT_GT(replay.suspended(), 2u) << "GPULEASE_SEED=" << seed;
  EXPECT_GT(replay.resumed(), 2u) << "GPULEASE_SEED=" << seed;
  replay.Finish();
  ASSERT_EQ(replay.Check(), "") << "GPULEASE_SEED=" << seed;
  ASSERT_FALSE(testing::Test::HasFailure()) << "GPULEASE_SEED=" << seed;
}

TEST(LedgerReplayTest, TheBooksAreRightAfterEveryCommandOfManyShortDays) {
  if (const char* seed = std::getenv("GPULEASE_SEED")) {
    PlayDay(std::strtoull(seed, nullptr, 10), 24'000, 1);
    return;
  }
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    PlayDay(seed, 24'000, 1);
    if (HasFailure()) return;
  }
}

TEST(LedgerReplayTest, TheBooksAreRightThroughAMillionEvents) { PlayDay(4711, 1'000'000, 1000); }

TEST(LedgerReplayTest, TheSameSeedReplaysTheSameDay) {
  Replay a = DayOf(3), b = DayOf(3);
  for (int step = 0; step < 5000; ++step) {
    a.Step();
    b.Step();
  }
  EXPECT_EQ(a.grants(), b.grants());
  EXPECT_EQ(a.queued(), b.queued());
  EXPECT_EQ(a.expired(), b.expired());
}

}  // namespace
}  // namespace gpulease::ledger
