// SPDX-License-Identifier: Apache-2.0
#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::hours;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

struct LossWorld : World {
  LossWorld() : World(TwoGpus()) {}
  void Lose(PoolIndex pool) { ledger.LosePool(pool, "the driver reports Xid 79", now, log); }
};

TEST(LedgerLossTest, EveryLeaseOnItIsOverAtOnceAndChargedToNobody) {
  LossWorld world;
  const SessionId owner = world.Open(world.Client(1000, 5 * kGiB)), holder = world.Open(1001);
  const LeaseId plain = world.Lend(owner, Spec(kGiB, {0}));
  AllocationSpec open_to_all = Named(kGiB, "weights", 0666);
  open_to_all.pools = {0};
  const LeaseId named = world.Lend(owner, open_to_all);
  world.Hold(holder, named, Access::kReadOnly);
  const LeaseId other = world.Lend(owner, Spec(2 * kGiB, {1}));
  world.Lose(0);
  EXPECT_TRUE(world.Gone(plain));
  EXPECT_TRUE(world.Gone(named));
  EXPECT_TRUE(world.Destroying(named));
  EXPECT_THAT(world.Told(EventType::kDeviceLost, named), UnorderedElementsAre(owner, holder));
  EXPECT_THAT(world.Told(EventType::kRevoked, named), IsEmpty());
  EXPECT_EQ(world.Use(0).leases, 0u);
  EXPECT_EQ(world.Use(0).leased + world.Use(0).releasing, 0u);
  EXPECT_EQ(world.StateOf(other), State::kLeased);
  EXPECT_EQ(world.ledger.FindSession(owner)->device_bytes, 2 * kGiB);
  // The limit of 5 GiB has room for what was lost, and the name is free.
  AllocationSpec again = Named(3 * kGiB, "weights");
  again.pools = {1};
  EXPECT_TRUE(world.Ask(owner, {again}).ok());
  world.Destroyed(named);  // the executor's late word
  world.Lose(0);
  EXPECT_EQ(world.Told(EventType::kDeviceLost, named).size(), 2u) << "one event, not two";
}

TEST(LedgerLossTest, WhatWasReleasingOrQuarantinedThereGoesToo) {
  LossWorld world;
  const SessionId session = world.Open();
  const LeaseId releasing = world.Lend(session, Spec(kGiB, {0}));
  const LeaseId quarantined = world.Lend(session, Spec(kGiB, {0}));
  const LeaseId destroying = world.Lend(session, Spec(kGiB, {0}));
  ASSERT_TRUE(world.Release(session, releasing).ok());
  world.Destroyed(releasing);
  ASSERT_TRUE(world.Revoke(quarantined, /*force=*/true).ok());
  world.Destroyed(quarantined);
  ASSERT_TRUE(world.Release(session, destroying).ok());
  world.Pass(hours(1));
  world.Lose(0);
  EXPECT_TRUE(world.Gone(releasing) && world.Gone(quarantined) && world.Gone(destroying));
  EXPECT_EQ(world.ledger.lease_count(), 0u);
}

TEST(LedgerLossTest, WaitersForItAloneFailAndOthersAreServedElsewhere) {
  LossWorld world;
  const SessionId holder = world.Open(1000), waiter = world.Open(1001);
  world.Lend(holder, Spec(10 * kGiB, {0}));
  const LeaseId second = world.Lend(holder, Spec(10 * kGiB, {1}));
  const Allocated bound = world.Ask(waiter, {Spec(kGiB, {0})}, hours(1)).value();
  const Allocated any = world.Ask(waiter, {Spec(kGiB)}, hours(1)).value();
  world.Lose(0);
  ASSERT_NE(world.Failure(bound.group), nullptr);
  EXPECT_EQ(world.Failure(bound.group)->reason, Reason::kGpuUnavailable);
  EXPECT_THAT(world.Failure(bound.group)->message, HasSubstr("Xid 79"));
  EXPECT_EQ(world.StateOf(any.leases[0]), State::kQueued);
  world.Return(holder, second);
  EXPECT_EQ(world.StateOf(any.leases[0]), State::kMaking);
  EXPECT_EQ(world.ledger.FindLease(any.leases[0])->pool, 1u);
}

TEST(LedgerLossTest, ARequestThatIsBeingMadeThereFailsAsAWhole) {
  LossWorld world;
  const SessionId session = world.Open();
  const Allocated both = world.Ask(session, {Spec(kGiB, {0}), Spec(kGiB, {1})}).value();
  world.Lose(0);
  ASSERT_NE(world.Failure(both.group), nullptr);
  EXPECT_EQ(world.Failure(both.group)->reason, Reason::kDeviceLost);
  EXPECT_FALSE(world.Make(both.group)) << "nobody wants it";
  for (const LeaseId lease : both.leases) {
    EXPECT_TRUE(world.Destroying(lease));
    world.Destroyed(lease);
  }
  EXPECT_TRUE(world.Gone(both.leases[0])) << "nobody shows it as free";
  EXPECT_EQ(world.StateOf(both.leases[1]), State::kReleasing);
}

}  // namespace
}  // namespace gpulease::ledger
