// SPDX-License-Identifier: Apache-2.0
#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Releases and destroys `lease`: it is pending.
void Pend(World& world, SessionId owner, LeaseId lease) {
  ASSERT_TRUE(world.Release(owner, lease).ok());
  world.Destroyed(lease);
}

TEST(LedgerObserveTest, CountsWhatOthersUseAsOutside) {
  World world;
  const SessionId session = world.Open();
  world.Lend(session, 10 * kGiB);
  world.Observe(0, 30 * kGiB);
  EXPECT_EQ(world.Use().outside, 20 * kGiB);
  EXPECT_EQ(world.Use().free, 70 * kGiB);
  const Result<Allocated> result = world.Ask(session, 71 * kGiB);
  ExpectRefused(result, Code::kUnavailable, Reason::kMemoryShort);
  EXPECT_THAT(result.error().message, HasSubstr("20.0 GiB used outside the broker"));
  world.Observe(0, 10 * kGiB);
  EXPECT_EQ(world.Use().outside, 0u);
}

TEST(LedgerObserveTest, SaysByHowMuchTheGpuIsOvercommitted) {
  World world;
  const SessionId session = world.Open();
  world.Lend(session, 90 * kGiB);
  world.Observe(0, 90 * kGiB + 30 * kGiB);
  EXPECT_EQ(world.Use().outside, 30 * kGiB);
  EXPECT_EQ(world.Use().free, 0u);
  EXPECT_EQ(world.Use().overcommitted, 20 * kGiB);
}

TEST(LedgerObserveTest, SurvivesAnAbsurdView) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, 90 * kGiB);
  world.Observe(0, ~Bytes{0});
  EXPECT_EQ(world.Use().free, 0u);
  Pend(world, session, lease);
  world.Observe(0, ~Bytes{0});
  world.Observe(0, 0);
  EXPECT_EQ(world.Use().free, 100 * kGiB);
}

TEST(LedgerObserveTest, FreesWhatTheDriverNoLongerShowsTheOldestFirst) {
  World world;
  const SessionId session = world.Open();
  const LeaseId a = world.Lend(session, 10 * kGiB), b = world.Lend(session, 10 * kGiB);
  Pend(world, session, b);
  Pend(world, session, a);
  world.Observe(0, 20 * kGiB);
  EXPECT_EQ(world.Use().releasing, 20 * kGiB);
  world.Observe(0, 15 * kGiB);
  EXPECT_EQ(world.ledger.FindLease(b)->unconfirmed_size, 5 * kGiB);
  EXPECT_EQ(world.ledger.FindLease(a)->unconfirmed_size, 10 * kGiB);
  EXPECT_EQ(world.Use().releasing, 15 * kGiB);
  EXPECT_EQ(world.Use().free, 85 * kGiB);
  EXPECT_EQ(world.ledger.Tenants()[0].device_bytes, 15 * kGiB);
  world.Observe(0, 8 * kGiB);
  EXPECT_TRUE(world.Gone(b));
  EXPECT_EQ(world.ledger.FindLease(a)->unconfirmed_size, 8 * kGiB);
  world.Observe(0, 0);
  EXPECT_TRUE(world.Gone(a));
}

// A DataLoader worker of a dead trainer keeps its memory in place.
TEST(LedgerObserveTest, MemoryThatAForkedChildPinsStaysReleasingAndBecomesUnconfirmed) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, 10 * kGiB);
  world.End(session);
  world.Destroyed(lease);
  EXPECT_EQ(world.ledger.NextDeadline(), world.now + seconds(5));
  EXPECT_THAT(world.ledger.PoolsToObserve(), ElementsAre(0u));
  world.Observe(0, 10 * kGiB);
  world.Pass(seconds(5) - milliseconds(1));
  EXPECT_EQ(world.StateOf(lease), State::kReleasing);
  world.Pass(milliseconds(1));
  EXPECT_EQ(world.StateOf(lease), State::kUnconfirmed);
  EXPECT_EQ(world.Use().unconfirmed, 10 * kGiB);
  EXPECT_EQ(world.Use().outside, 0u);
  EXPECT_EQ(world.ledger.NextDeadline(), kNever);
  world.Observe(0, 10 * kGiB);
  EXPECT_EQ(world.Use().unconfirmed, 10 * kGiB);
  world.Observe(0, 0);
  EXPECT_TRUE(world.Gone(lease));
  EXPECT_THAT(world.ledger.PoolsToObserve(), IsEmpty());
}

TEST(LedgerObserveTest, KeepsTheLastKnownOutsideUseApartFromWhatIsPending) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, 10 * kGiB);
  world.Observe(0, 15 * kGiB);
  Pend(world, session, lease);
  world.Observe(0, 15 * kGiB);
  EXPECT_EQ(world.Use().releasing, 10 * kGiB);
  EXPECT_EQ(world.Use().outside, 5 * kGiB);
  world.Observe(0, 5 * kGiB);
  EXPECT_TRUE(world.Gone(lease));
  EXPECT_EQ(world.Use().outside, 5 * kGiB);
}

TEST(LedgerObserveTest, OutsideUseThatGrowsPastWhatIsPendingShowsAsOutside) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, 10 * kGiB);
  Pend(world, session, lease);
  world.Observe(0, 25 * kGiB);
  EXPECT_EQ(world.Use().releasing, 10 * kGiB);
  EXPECT_EQ(world.Use().outside, 15 * kGiB);
  world.Observe(0, 4 * kGiB);
  EXPECT_EQ(world.Use().releasing, 4 * kGiB);
  EXPECT_EQ(world.Use().outside, 0u);
}

TEST(LedgerObserveTest, OutsideUseThatShrinksBelowTheBaselineLowersIt) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, 10 * kGiB);
  world.Observe(0, 30 * kGiB);
  Pend(world, session, lease);
  world.Observe(0, 12 * kGiB);
  EXPECT_TRUE(world.Gone(lease));
  EXPECT_EQ(world.Use().outside, 12 * kGiB);
  const LeaseId next = world.Lend(session, 10 * kGiB);
  Pend(world, session, next);
  world.Observe(0, 22 * kGiB);
  EXPECT_EQ(world.StateOf(next), State::kReleasing);
}

TEST(LedgerObserveTest, CountsWhatIsBeingDestroyedAsUsedByTheBroker) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, 10 * kGiB);
  ASSERT_TRUE(world.Release(session, lease).ok());
  world.Observe(0, 10 * kGiB);
  EXPECT_EQ(world.Use().outside, 0u);
  EXPECT_EQ(world.StateOf(lease), State::kDestroying);
}

TEST(LedgerObserveTest, AsksForAnObservationWhenSomethingIsReleasing) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, kGiB);
  ASSERT_TRUE(world.Release(session, lease).ok());
  EXPECT_THAT(world.Seen(Effect::Kind::kObserve), IsEmpty());
  world.Destroyed(lease);
  ASSERT_EQ(world.Seen(Effect::Kind::kObserve).size(), 1u);
  EXPECT_EQ(world.Seen(Effect::Kind::kObserve)[0].pool, 0u);
}

TEST(LedgerObserveTest, HostMemoryIsFreeWhenTheKernelSaysThatNobodyHasIt) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, HostSpec(kMiB));
  world.End(session, true);
  EXPECT_THAT(world.ledger.LeasesToObserve(1), IsEmpty());
  world.Destroyed(lease);
  EXPECT_THAT(world.ledger.LeasesToObserve(1), ElementsAre(lease));
  world.ledger.ObserveLease(lease, true, world.now, world.log);
  EXPECT_EQ(world.Use(1).quarantined, kMiB);
  world.ledger.ObserveLease(lease, false, world.now, world.log);
  EXPECT_TRUE(world.Gone(lease));
  EXPECT_EQ(world.Use(1).free, 50 * kGiB);
}

TEST(LedgerObserveTest, APoolThatNothingObservesIsFreeAtOnce) {
  Options options = OneGpu();
  options.pools[0].confirms_releases = false;
  World world(options);
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, kGiB);
  world.End(session, true);
  EXPECT_EQ(world.Use().quarantined, kGiB);
  EXPECT_THAT(world.ledger.PoolsToObserve(), IsEmpty());
  world.Destroyed(lease);
  EXPECT_TRUE(world.Gone(lease));
  EXPECT_EQ(world.Use().free, 100 * kGiB);
}

TEST(LedgerObserveTest, TellsEverybodyOfAPoolsStateOnce) {
  World world;
  for (int i = 0; i < 2; ++i)
    world.ledger.SetPoolUsable(0, false, "fell off the bus", world.now, world.log);
  const std::vector<Effect> events = world.Seen(Effect::Kind::kEvent);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].event, EventType::kPoolState);
  EXPECT_EQ(events[0].pool, 0u);
  EXPECT_EQ(events[0].message, "fell off the bus");
  EXPECT_THAT(events[0].sessions, IsEmpty());
  EXPECT_FALSE(world.Use().usable);
}

TEST(LedgerObserveTest, AGroupThatTheDriverHadNoMemoryForIsRetriedAfterAnObservation) {
  World world;
  const SessionId session = world.Open();
  const Allocated answer = world.Ask(session, 10 * kGiB).value();
  world.Fail(answer.group, Reason::kDriverMemoryShort);
  EXPECT_EQ(world.StateOf(answer.leases[0]), State::kQueued);
  EXPECT_EQ(world.Failure(answer.group), nullptr);
  EXPECT_EQ(world.ledger.QueuePosition(answer.group), 1u);
  EXPECT_EQ(world.Use().free, 100 * kGiB);
  EXPECT_THAT(world.ledger.PoolsToObserve(), ElementsAre(0u));
  EXPECT_EQ(world.Seen(Effect::Kind::kObserve).size(), 1u);
  // Nobody takes its memory meanwhile.
  ExpectRefused(world.Ask(world.Open(1001), 1), Code::kUnavailable, Reason::kMemoryShort);
  EXPECT_EQ(world.Seen(Effect::Kind::kMake).size(), 1u);
  world.Observe(0, 0);
  EXPECT_EQ(world.StateOf(answer.leases[0]), State::kMaking);
  EXPECT_EQ(world.Seen(Effect::Kind::kMake).size(), 2u);
  EXPECT_THAT(world.ledger.PoolsToObserve(), IsEmpty());
  EXPECT_TRUE(world.Make(answer.group));
  EXPECT_THAT(world.Told(EventType::kGranted, answer.leases[0]), IsEmpty());
}

TEST(LedgerObserveTest, AGroupThatTheDriverHasNoMemoryForEndsWithBothNumbers) {
  World world;
  const SessionId session = world.Open();
  const Allocated answer = world.Ask(session, 10 * kGiB).value();
  world.Fail(answer.group, Reason::kDriverMemoryShort);
  EXPECT_EQ(world.ledger.NextDeadline(), world.now + seconds(2));
  world.Pass(seconds(1));
  world.Observe(0, 0);
  world.Fail(answer.group, Reason::kDriverMemoryShort, "cuMemCreate of 10.0 GiB: out of memory");
  world.Pass(seconds(1));
  const Error* error = world.Failure(answer.group);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->code, Code::kResourceExhausted);
  EXPECT_EQ(error->reason, Reason::kDriverMemoryShort);
  EXPECT_EQ(error->message,
            "tried for 2.0 s: GPU-0: asked 10.0 GiB, 100.0 GiB free by the broker's books, but the "
            "driver had none (cuMemCreate of 10.0 GiB: out of memory): memory was taken past the "
            "broker");
  EXPECT_EQ(error->requested_bytes, 10 * kGiB);
  EXPECT_EQ(error->available_bytes, 100 * kGiB);
  EXPECT_TRUE(world.Gone(answer.leases[0]));
  EXPECT_THAT(world.ledger.PoolsToObserve(), IsEmpty());
}

TEST(LedgerObserveTest, AGroupThatTheDriverHadNoMemoryForKeepsALongerWait) {
  World world;
  const SessionId session = world.Open();
  const Allocated answer = world.Ask(session, 10 * kGiB, seconds(60)).value();
  world.Fail(answer.group, Reason::kDriverMemoryShort);
  EXPECT_EQ(world.ledger.NextDeadline(), world.now + seconds(60));
  EXPECT_EQ(world.Release(session, answer.leases[0])->state, State::kDestroying);
  EXPECT_TRUE(world.Gone(answer.leases[0]));
  EXPECT_THAT(world.ledger.PoolsToObserve(), IsEmpty());
}

TEST(LedgerObserveTest, AGroupOnTwoGpusWaitsForBothToBeObserved) {
  World world(TwoGpus());
  const SessionId session = world.Open();
  const Allocated answer = world.Ask(session, {Spec(kGiB, {0}), Spec(kGiB, {1})}).value();
  world.Fail(answer.group, Reason::kDriverMemoryShort);
  world.Observe(0, 0);
  EXPECT_EQ(world.StateOf(answer.leases[0]), State::kQueued);
  world.Observe(1, 0);
  EXPECT_EQ(world.StateOf(answer.leases[0]), State::kMaking);
}

}  // namespace
}  // namespace gpulease::ledger
