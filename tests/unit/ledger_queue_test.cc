// SPDX-License-Identifier: Apache-2.0
#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(LedgerQueueTest, GrantsAWaiterWhenMemoryIsFreeAndTellsIt) {
  World world;
  const SessionId holder = world.Open(1000), waiter = world.Open(1001);
  const LeaseId lease = world.Lend(holder, 100 * kGiB);
  const Allocated answer = world.Ask(waiter, 10 * kGiB, hours(1)).value();
  EXPECT_EQ(answer.state, State::kQueued);
  EXPECT_EQ(answer.queue_position, 1u);
  EXPECT_EQ(world.Use().queued, 1u);
  EXPECT_EQ(world.ledger.FindLease(answer.leases[0])->size, 10 * kGiB);
  ASSERT_TRUE(world.Release(holder, lease).ok());
  world.Destroyed(lease);
  EXPECT_EQ(world.StateOf(answer.leases[0]), State::kQueued);  // not before the driver shows it
  world.Observe(0, 0);
  EXPECT_EQ(world.StateOf(answer.leases[0]), State::kMaking);
  EXPECT_EQ(world.Use().queued, 0u);
  EXPECT_EQ(world.ledger.QueuePosition(answer.group), 0u);
  world.Make(answer.group);
  EXPECT_THAT(world.Told(EventType::kGranted, answer.leases[0]), ElementsAre(waiter));
}

TEST(LedgerQueueTest, WakesTheNextWaiterWhenTheHeadGivesUp) {
  World world;
  const SessionId session = world.Open();
  world.Lend(session, 60 * kGiB);
  const LeaseId head = world.Queue(session, 50 * kGiB);
  const LeaseId next = world.Queue(session, 40 * kGiB);
  EXPECT_EQ(world.ledger.QueuePosition(world.ledger.FindLease(next)->group), 2u);
  ASSERT_TRUE(world.Release(session, head).ok());
  EXPECT_EQ(world.StateOf(next), State::kMaking);
}

TEST(LedgerQueueTest, ServesATenantInTheOrderOfItsRequests) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, 100 * kGiB);
  const LeaseId first = world.Queue(session, 60 * kGiB);
  const LeaseId second = world.Queue(session, 60 * kGiB);
  const LeaseId third = world.Queue(session, 40 * kGiB);
  world.Return(session, lease);
  EXPECT_EQ(world.StateOf(first), State::kMaking);
  EXPECT_EQ(world.StateOf(second), State::kQueued);
  EXPECT_EQ(world.StateOf(third), State::kQueued);  // it would fit, and waits behind the second
}

// A large request among small ones that come and go at 95 % of the GPU.
TEST(LedgerQueueTest, SmallRequestsThatComeAndGoDoNotStarveALargeOne) {
  World world;
  const SessionId churn = world.Open(1000), large = world.Open(1001);
  std::vector<LeaseId> small;
  for (int i = 0; i < 48; ++i) small.push_back(world.Lend(churn, 2 * kGiB));
  const LeaseId waiting = world.Queue(large, 60 * kGiB);
  int grants_of_small = 0;
  for (const LeaseId lease : small) {
    if (world.StateOf(waiting) != State::kQueued) break;
    ExpectRefused(world.Ask(churn, 2 * kGiB), Code::kUnavailable, Reason::kMemoryShort);
    const Allocated answer = world.Ask(churn, 2 * kGiB, hours(1)).value();
    grants_of_small += answer.state == State::kQueued ? 0 : 1;
    world.Return(churn, lease);
  }
  EXPECT_EQ(grants_of_small, 0);
  EXPECT_EQ(world.StateOf(waiting), State::kMaking);
}

TEST(LedgerQueueTest, AFloodOfOneTenantDelaysAnotherByOneRequestAtMost) {
  World world;
  const SessionId flood = world.Open(1000), single = world.Open(1001);
  const LeaseId all = world.Lend(flood, 100 * kGiB);
  std::vector<LeaseId> flooded;
  for (int i = 0; i < 1000; ++i) flooded.push_back(world.Queue(flood, 100 * kGiB));
  const LeaseId mine = world.Queue(single, 100 * kGiB);
  EXPECT_EQ(world.ledger.QueuePosition(world.ledger.FindLease(mine)->group), 2u);
  EXPECT_EQ(world.ledger.QueuePosition(world.ledger.FindLease(flooded[1])->group), 3u);
  EXPECT_EQ(world.ledger.QueuePosition(world.ledger.FindLease(flooded[999])->group), 1001u);
  world.Return(flood, all);
  EXPECT_EQ(world.StateOf(flooded[0]), State::kMaking);
  world.Make(world.ledger.FindLease(flooded[0])->group);
  world.Return(flood, flooded[0]);
  EXPECT_EQ(world.StateOf(mine), State::kMaking);
}

TEST(LedgerQueueTest, ServesTenantsInRounds) {
  World world;
  const SessionId a = world.Open(1000), b = world.Open(1001), c = world.Open(1002);
  const LeaseId all = world.Lend(a, 100 * kGiB);
  std::vector<LeaseId> order;
  const LeaseId a1 = world.Queue(a, 100 * kGiB), a2 = world.Queue(a, 100 * kGiB),
                a3 = world.Queue(a, 100 * kGiB), b1 = world.Queue(b, 100 * kGiB),
                b2 = world.Queue(b, 100 * kGiB), c1 = world.Queue(c, 100 * kGiB);
  SessionId owner = a;
  for (LeaseId last = all; order.size() < 6;) {
    world.Return(owner, last);
    for (const LeaseId lease : {a1, a2, a3, b1, b2, c1}) {
      if (world.Gone(lease) || world.StateOf(lease) != State::kMaking) continue;
      order.push_back(lease);
      last = lease;
      owner = world.ledger.FindLease(lease)->owner;
      world.Make(world.ledger.FindLease(lease)->group);
      break;
    }
  }
  EXPECT_THAT(order, ElementsAre(a1, b1, c1, a2, b2, a3));
}

TEST(LedgerQueueTest, PositionsAreThoseOfTheOrderOfService) {
  World world;
  const SessionId a = world.Open(1000), b = world.Open(1001), c = world.Open(1002);
  world.Lend(a, 100 * kGiB);
  const LeaseId a1 = world.Queue(a, kGiB), a2 = world.Queue(a, kGiB), a3 = world.Queue(a, kGiB),
                b1 = world.Queue(b, kGiB), b2 = world.Queue(b, kGiB), c1 = world.Queue(c, kGiB);
  std::vector<std::uint32_t> positions;
  for (const LeaseId lease : {a1, b1, c1, a2, b2, a3})
    positions.push_back(world.ledger.QueuePosition(world.ledger.FindLease(lease)->group));
  EXPECT_THAT(positions, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(LedgerQueueTest, PositionsCountOnlyThoseThatWantTheSamePools) {
  World world(TwoGpus());
  const SessionId session = world.Open();
  world.Lend(session, Spec(10 * kGiB, {0}));
  world.Lend(session, Spec(10 * kGiB, {1}));
  world.Ask(session, {Spec(kGiB, {0})}, hours(1)).value();
  EXPECT_EQ(world.Ask(session, {Spec(kGiB, {1})}, hours(1))->queue_position, 1u);
  EXPECT_EQ(world.Ask(session, {Spec(kGiB)}, hours(1))->queue_position, 3u);
}

// The second request of a tenant was the first to wait for its GPU: others' small requests for
// that GPU must not pass it, though they are the first of their tenants.
TEST(LedgerQueueTest, TheFirstToWaitForAPoolStaysTheFirstForIt) {
  World world(TwoGpus());
  const SessionId a = world.Open(1000), b = world.Open(1001);
  world.Lend(a, Spec(10 * kGiB, {0}));
  const LeaseId small = world.Lend(a, Spec(2 * kGiB, {1}));
  world.Ask(a, {Spec(kGiB, {0})}, hours(1)).value();
  const Allocated large = world.Ask(a, {Spec(10 * kGiB, {1})}, hours(1)).value();
  const Allocated passing = world.Ask(b, {Spec(kGiB, {1})}, hours(1)).value();
  EXPECT_EQ(passing.state, State::kQueued);
  world.Return(a, small);
  EXPECT_EQ(world.StateOf(large.leases[0]), State::kMaking);
  EXPECT_EQ(world.StateOf(passing.leases[0]), State::kQueued);
}

TEST(LedgerQueueTest, AWaiterForOneGpuKeepsNobodyFromAnother) {
  World world(TwoGpus());
  const SessionId a = world.Open(1000), b = world.Open(1001);
  world.Lend(a, Spec(9 * kGiB, {0}));
  world.Ask(a, {Spec(5 * kGiB, {0})}, hours(1)).value();
  EXPECT_TRUE(world.Ask(b, {Spec(kGiB, {1})}).ok());
  ExpectRefused(world.Ask(b, {Spec(kGiB, {0})}), Code::kUnavailable, Reason::kMemoryShort);
  const Allocated any = world.Ask(b, {Spec(kGiB)}).value();
  EXPECT_EQ(world.ledger.FindLease(any.leases[0])->pool, 1u);
}

TEST(LedgerQueueTest, SaysThatOthersWaitWhereThereIsMemory) {
  World world;
  const SessionId session = world.Open();
  world.Lend(session, 60 * kGiB);
  world.Queue(session, 50 * kGiB);
  const Result<Allocated> result = world.Ask(session, kGiB);
  ExpectRefused(result, Code::kUnavailable, Reason::kMemoryShort);
  EXPECT_THAT(result.error().message, HasSubstr("40.0 GiB free"));
  EXPECT_THAT(result.error().message, HasSubstr("1 request waits for it"));
}

TEST(LedgerQueueTest, ARequestHeldBackByItsTenantsLimitReservesNothing) {
  World world;
  const SessionId limited = world.Open(world.Client(1000, 10 * kGiB)), other = world.Open(1001);
  const LeaseId held = world.Lend(limited, 10 * kGiB);
  const LeaseId waiting = world.Queue(limited, 8 * kGiB);
  world.Lend(other, 80 * kGiB);
  EXPECT_EQ(world.Use().queued, 1u);
  ASSERT_EQ(world.ledger.Blockers(world.ledger.FindLease(waiting)->group, {.uid = 1000}).size(),
            1u);
  EXPECT_EQ(
      world.ledger.Blockers(world.ledger.FindLease(waiting)->group, {.uid = 1000})[0].lease_id,
      held.value);
  ASSERT_TRUE(world.Release(limited, held).ok());
  world.Destroyed(held);
  world.Observe(0, 80 * kGiB);
  EXPECT_EQ(world.StateOf(waiting), State::kMaking);
}

TEST(LedgerQueueTest, ATenantsLaterRequestsDoNotPassOneThatWaitsForItsLimit) {
  World world;
  const SessionId session = world.Open(world.Client(1000, 10 * kGiB));
  const LeaseId held = world.Lend(session, 8 * kGiB);
  const LeaseId waiting = world.Queue(session, 8 * kGiB);
  ExpectRefused(world.Ask(session, kGiB), Code::kResourceExhausted, Reason::kTenantLimit);
  const LeaseId behind = world.Queue(session, kGiB);
  EXPECT_TRUE(world.Ask(session, {HostSpec(kGiB)}).ok());  // another limit
  world.Return(session, held);
  EXPECT_EQ(world.StateOf(waiting), State::kMaking);
  EXPECT_EQ(world.StateOf(behind), State::kMaking);
}

TEST(LedgerQueueTest, AHeadThatItsTenantsLimitComesToHoldBackLetsOthersPass) {
  World world(TwoGpus());
  const SessionId limited = world.Open(world.Client(1000, 10 * kGiB)), other = world.Open(1001);
  const LeaseId full = world.Lend(other, Spec(9 * kGiB, {0}));
  const Allocated head = world.Ask(limited, {Spec(8 * kGiB, {0})}, hours(1)).value();
  const Allocated behind = world.Ask(other, {Spec(kGiB, {0})}, hours(1)).value();
  EXPECT_EQ(behind.state, State::kQueued);
  const LeaseId used = world.Lend(limited, Spec(4 * kGiB, {1}));
  EXPECT_EQ(world.StateOf(behind.leases[0]), State::kMaking);
  EXPECT_EQ(world.StateOf(head.leases[0]), State::kQueued);
  // It is the head again when it can be.
  world.Return(limited, used);
  ExpectRefused(world.Ask(other, {Spec(1, {0})}), Code::kUnavailable, Reason::kMemoryShort);
  ASSERT_TRUE(world.Release(other, full).ok());
  world.Destroyed(full);
  world.Observe(0, 0);
  EXPECT_EQ(world.StateOf(head.leases[0]), State::kMaking);
}

TEST(LedgerQueueTest, AGrownLimitLetsTheTenantsWaitersIn) {
  World world;
  const SessionId session = world.Open(world.Client(1000, 10 * kGiB));
  world.Lend(session, 10 * kGiB);
  const LeaseId waiting = world.Queue(session, 5 * kGiB);
  world.Open(world.Client(1000, 20 * kGiB));
  EXPECT_EQ(world.StateOf(waiting), State::kMaking);
}

// Two sessions that hold 45 % each and want 20 % more.
TEST(LedgerQueueTest, HoldAndWaitEndsWithTheWait) {
  World world;
  const SessionId a = world.Open(1000), b = world.Open(1001);
  world.Lend(a, 45 * kGiB);
  world.Lend(b, 45 * kGiB);
  const LeaseId more_a = world.Queue(a, 20 * kGiB, seconds(10));
  const LeaseId more_b = world.Queue(b, 20 * kGiB, seconds(20));
  const GroupId group = world.ledger.FindLease(more_a)->group;
  EXPECT_EQ(world.ledger.NextDeadline(), world.now + seconds(10));
  world.Pass(seconds(10));
  EXPECT_TRUE(world.Gone(more_a));
  const Error* error = world.Failure(group);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->code, Code::kDeadlineExceeded);
  EXPECT_EQ(error->reason, Reason::kWaitOver);
  EXPECT_THAT(error->message, HasSubstr("waited 10.0 s: GPU-0: asked 20.0 GiB, 10.0 GiB free"));
  EXPECT_EQ(error->blockers.size(), 2u);
  EXPECT_THAT(world.Told(EventType::kExpired, more_a), ElementsAre(a));
  world.Pass(seconds(10));
  EXPECT_TRUE(world.Gone(more_b));
  EXPECT_EQ(world.ledger.NextDeadline(), kNever);
}

TEST(LedgerQueueTest, AWaitForTheTenantsLimitEndsWithItsNumbers) {
  World world;
  const SessionId session = world.Open(world.Client(1000, 10 * kGiB));
  world.Lend(session, 10 * kGiB);
  const LeaseId waiting = world.Queue(session, 5 * kGiB, seconds(1));
  const GroupId group = world.ledger.FindLease(waiting)->group;
  world.Pass(seconds(1));
  EXPECT_EQ(world.Failure(group)->code, Code::kDeadlineExceeded);
  EXPECT_THAT(world.Failure(group)->message, HasSubstr("tenant t1000: charged 10.0 GiB"));
}

TEST(LedgerQueueTest, AWaitThatIsOverLetsTheNextIn) {
  World world;
  const SessionId session = world.Open();
  world.Lend(session, 60 * kGiB);
  const LeaseId head = world.Queue(session, 50 * kGiB, seconds(1));
  const LeaseId next = world.Queue(session, 40 * kGiB);
  world.Pass(seconds(1));
  EXPECT_TRUE(world.Gone(head));
  EXPECT_EQ(world.StateOf(next), State::kMaking);
}

TEST(LedgerQueueTest, WhatWaitsForAnUnusableGpuEndsWithItsTimeAndBlocksNobody) {
  World world(TwoGpus());
  const SessionId session = world.Open(1000), other = world.Open(1001);
  world.Lend(session, Spec(5 * kGiB, {0}));
  const Allocated both =
      world.Ask(session, {Spec(8 * kGiB, {0}), Spec(kGiB, {1})}, seconds(5)).value();
  ExpectRefused(world.Ask(other, {Spec(kGiB, {1})}), Code::kUnavailable, Reason::kMemoryShort);
  world.ledger.SetPoolUsable(0, false, "lost", world.now, world.log);
  EXPECT_TRUE(world.Ask(other, {Spec(kGiB, {1})}).ok());
  EXPECT_EQ(world.StateOf(both.leases[0]), State::kQueued);
  world.Pass(seconds(5));
  EXPECT_THAT(world.Failure(both.group)->message, HasSubstr("asked 9.0 GiB in 2 pieces"));
}

TEST(LedgerQueueTest, AGpuThatIsUsableAgainServesItsWaiters) {
  World world(TwoGpus());
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, Spec(5 * kGiB, {0}));
  const Allocated waiting = world.Ask(session, {Spec(8 * kGiB, {0})}, hours(1)).value();
  world.ledger.SetPoolUsable(0, false, "drained", world.now, world.log);
  world.Return(session, lease);
  EXPECT_EQ(world.StateOf(waiting.leases[0]), State::kQueued);
  world.ledger.SetPoolUsable(0, true, "", world.now, world.log);
  EXPECT_EQ(world.StateOf(waiting.leases[0]), State::kMaking);
}

TEST(LedgerQueueTest, DestroyingUnobservedMemoryServesWaitersAtOnce) {
  Options options = OneGpu();
  options.pools[0].confirms_releases = false;
  World world(options);
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, 100 * kGiB);
  const LeaseId waiting = world.Queue(session, kGiB);
  ASSERT_TRUE(world.Release(session, lease).ok());
  world.Destroyed(lease);
  EXPECT_EQ(world.StateOf(waiting), State::kMaking);
}

TEST(LedgerQueueTest, ADeadTenantsTurnGoesToTheNext) {
  World world;
  const SessionId a = world.Open(1000), b = world.Open(1001);
  const LeaseId all = world.Lend(b, 60 * kGiB);
  world.Queue(a, 50 * kGiB);
  const LeaseId next = world.Queue(b, 40 * kGiB);
  world.End(a);
  EXPECT_EQ(world.StateOf(next), State::kMaking);
  EXPECT_EQ(world.StateOf(all), State::kLeased);
}

TEST(LedgerQueueTest, ARetriedRequestKeepsItsPlace) {
  World world;
  const SessionId session = world.Open();
  world.Lend(session, 100 * kGiB);
  const Allocated first = world.Ask(session, {Spec(kGiB)}, hours(1), "r").value();
  world.Queue(session, kGiB);
  const Allocated again = world.Ask(session, {Spec(kGiB)}, hours(1), "r").value();
  EXPECT_TRUE(again.retry);
  EXPECT_EQ(again.leases, first.leases);
  EXPECT_EQ(again.state, State::kQueued);
  EXPECT_EQ(again.queue_position, 1u);
}

}  // namespace
}  // namespace gpulease::ledger
