// SPDX-License-Identifier: Apache-2.0
//
// 100,000 leases at once: what they cost in memory and time is printed; the bounds asserted are
// those beyond which something is linear that must not be.
#include <gtest/gtest.h>
#include <malloc.h>
#include <time.h>

#include <chrono>
#include <cstdio>
#include <vector>

#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

constexpr std::size_t kLeases = 100'000;
constexpr std::size_t kSessions = 1'000;

Options ManyOptions() {
  Options options;
  options.pools = {Gpu("GPU-0", Bytes{1} << 40), Gpu("GPU-1", Bytes{1} << 40)};
  options.limits.leases_per_user = ~std::uint32_t{0};
  options.limits.waits_per_user = ~std::uint32_t{0};
  return options;
}

double ProcessorSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Nanoseconds of processor time, which a busy machine does not stretch, that each of `count` calls
// took; printed.
template <typename Body>
double NanosecondsEach(const char* what, std::size_t count, Body body) {
  const double start = ProcessorSeconds();
  for (std::size_t i = 0; i < count; ++i) body(i);
  const double each = (ProcessorSeconds() - start) * 1e9 / static_cast<double>(count);
  std::printf("%-28s %8.0f ns\n", what, each);
  return each;
}

TEST(LedgerScaleTest, AHundredThousandLeasesAreSmallAndNoCommandIsLinearInThem) {
  World world(ManyOptions());
  std::vector<SessionId> sessions;
  for (std::size_t i = 0; i < kSessions; ++i) sessions.push_back(world.Open());
  world.log.reserve(kLeases * 2);
  std::vector<LeaseId> leases;
  leases.reserve(kLeases);
  const std::size_t before = mallinfo2().uordblks;
  std::vector<double> times;
  times.push_back(NanosecondsEach("allocate + made + take", kLeases, [&](std::size_t i) {
    leases.push_back(world.Lend(sessions[i % kSessions], 1));
    world.log.clear();
  }));
  const std::size_t bytes = (mallinfo2().uordblks - before) / kLeases;
  std::printf("%-28s %8zu B\n", "memory of a lease", bytes);
  EXPECT_LT(bytes, 1024u);
  times.push_back(NanosecondsEach("refused: memory short", 10'000, [&](std::size_t i) {
    EXPECT_FALSE(world.Ask(sessions[i % kSessions], Bytes{1} << 40).ok());
  }));
  times.push_back(NanosecondsEach("open + take + close", kLeases, [&](std::size_t i) {
    const SessionId other = sessions[(i + 1) % kSessions];
    world.Hold(other, leases[i]);
    EXPECT_TRUE(world.Close(other, leases[i]).ok());
  }));
  times.push_back(NanosecondsEach("release + destroyed", kLeases / 2, [&](std::size_t i) {
    EXPECT_TRUE(world.Release(sessions[i % kSessions], leases[i]).ok());
    world.Destroyed(leases[i]);
    world.log.clear();
  }));
  const double observed = NanosecondsEach("observe, of all", 1, [&](std::size_t) {
    for (const PoolIndex pool : {0u, 1u}) world.Observe(pool, world.Live(pool));
  });
  EXPECT_EQ(world.ledger.lease_count(), kLeases / 2);
  times.push_back(observed / (kLeases / 2));
  times.push_back(NanosecondsEach("end of a session", kSessions,
                                  [&](std::size_t i) {
                                    world.End(sessions[i]);
                                    world.log.clear();
                                  }) /
                  (kLeases / 2 / kSessions));
  // A linear command takes a millisecond here; a sanitizer costs ten times what the others take.
  for (const double time : times) EXPECT_LT(time, 200'000);
}

TEST(LedgerScaleTest, AFloodOfWaitersCostsTheOthersLittle) {
  World world(ManyOptions());
  const SessionId holder = world.Open(1), flood = world.Open(2);
  const LeaseId first = world.Lend(holder, Spec(Bytes{1} << 40, {0}));
  NanosecondsEach("queue behind 2,000", 4'000, [&](std::size_t) {
    EXPECT_TRUE(world.Ask(flood, {Spec(kGiB, {0})}, std::chrono::hours(1)).ok());
  });
  const double other = NanosecondsEach("grant on the other GPU", 1'000, [&](std::size_t) {
    EXPECT_TRUE(world.Ask(holder, {Spec(1, {1})}).ok());
  });
  EXPECT_LT(other, 200'000);
  EXPECT_TRUE(world.Release(holder, first).ok());
  world.Destroyed(first);
  world.log.clear();
  NanosecondsEach("grant to 1,024 waiters", 1, [&](std::size_t) { world.Observe(0, 0); });
  EXPECT_EQ(world.Seen(Effect::Kind::kMake).size(), 1024u);
}

}  // namespace
}  // namespace gpulease::ledger
