// SPDX-License-Identifier: Apache-2.0
#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

AllocationSpec Elastic(Bytes size, Bytes reserve = 64 * kGiB, std::string name = "") {
  AllocationSpec spec = Named(size, std::move(name), 0666);
  spec.reserve = reserve;
  return spec;
}

struct ElasticWorld : World {
  using World::World;
  Result<Resized> Ask(SessionId session, LeaseId lease, Bytes size, std::uint32_t have,
                      Duration wait = {}) {
    return ledger.Resize({session, lease, size, have, wait}, now, log);
  }
  // Grown and made.
  void Grow(SessionId session, LeaseId lease, Bytes size) {
    const auto have = static_cast<std::uint32_t>(ledger.FindLease(lease)->chunks.size());
    const Resized answer = Ask(session, lease, size, have).value();
    ASSERT_EQ(answer.state, State::kMaking);
    EXPECT_TRUE(Make(answer.group));
  }
  Result<std::uint32_t> Refresh(SessionId session, LeaseId lease, std::uint32_t have) {
    return ledger.Refresh(session, lease, have, now, log);
  }
  const Lease& At(LeaseId lease) const { return *ledger.FindLease(lease); }
  // What was cut off last.
  LeaseId LastCut() const { return Seen(Effect::Kind::kCut).back().other; }
};

TEST(LedgerElasticTest, AGrowthBecomesAPartOfItsLease) {
  ElasticWorld world;
  const SessionId owner = world.Open(1000);
  const LeaseId lease = world.Lend(owner, Elastic(2 * kMiB));
  EXPECT_EQ(world.At(lease).reserved, 64 * kGiB);
  const Resized grows = world.Ask(owner, lease, 5 * kMiB, 1).value();
  EXPECT_EQ(grows.state, State::kMaking);
  EXPECT_EQ(world.At(lease).size, 2 * kMiB) << "until it is made";
  EXPECT_EQ(world.Use().offered, 4 * kMiB);
  EXPECT_EQ(world.Ask(owner, lease, 6 * kMiB, 1).value().growth, grows.growth) << "asked again";
  EXPECT_TRUE(world.Make(grows.group));
  EXPECT_TRUE(world.Gone(grows.growth));
  EXPECT_THAT(world.At(lease).chunks, ElementsAre(2 * kMiB, 4 * kMiB));
  EXPECT_EQ(world.At(lease).size, 6 * kMiB);
  EXPECT_EQ(world.Use().leased, 6 * kMiB);
  EXPECT_EQ(world.Use().leases, 1u);
  EXPECT_EQ(world.ledger.FindSession(owner)->device_bytes, 6 * kMiB);
  EXPECT_EQ(world.ledger.FindSession(owner)->owned, 1u);
  const Effect merge = world.Seen(Effect::Kind::kMerge).back();
  EXPECT_EQ(merge.lease, lease);
  EXPECT_EQ(merge.other, grows.growth);
  const Effect ready = world.Seen(Effect::Kind::kReady).back();
  EXPECT_EQ(ready.lease, lease);
  EXPECT_EQ(ready.chunk, 1u);
  EXPECT_EQ(world.ledger.FindGrown(owner, grows.growth), &world.At(lease));
  EXPECT_EQ(world.Ask(owner, lease, 6 * kMiB, 2).value().growth, LeaseId{}) << "it has that size";
  world.Return(owner, lease);
  EXPECT_EQ(world.Use().free, 100 * kGiB);
}

TEST(LedgerElasticTest, ItShrinksByWholeChunksAtItsEnd) {
  ElasticWorld world;
  const SessionId owner = world.Open(1000);
  const LeaseId lease = world.Lend(owner, Elastic(2 * kMiB));
  for (const Bytes size : {6 * kMiB, 8 * kMiB}) world.Grow(owner, lease, size);
  ASSERT_TRUE(world.Ask(owner, lease, 7 * kMiB, 3).ok());
  EXPECT_EQ(world.At(lease).size, 8 * kMiB) << "7 MiB are 8 in pages of 2";
  ASSERT_TRUE(world.Ask(owner, lease, 3 * kMiB, 2).ok());
  EXPECT_EQ(world.At(lease).size, 6 * kMiB) << "no chunk is divided";
  EXPECT_EQ(world.At(lease).target, 0u);
  const LeaseId cut = world.LastCut();
  EXPECT_TRUE(world.Destroying(cut));
  EXPECT_EQ(world.At(cut).parent, lease);
  EXPECT_EQ(world.Use().releasing, 2 * kMiB);
  EXPECT_EQ(world.Use().leased, 6 * kMiB);
  EXPECT_EQ(world.ledger.FindSession(owner)->device_bytes, 6 * kMiB);
  world.Destroyed(cut);
  EXPECT_EQ(world.Use().releasing, 2 * kMiB) << "until the driver shows them";
  world.Observe(0, world.Live(0));
  EXPECT_TRUE(world.Gone(cut));
  EXPECT_EQ(world.Use().free, 100 * kGiB - 6 * kMiB);
  ASSERT_TRUE(world.Ask(owner, lease, 1, 1).ok());
  EXPECT_EQ(world.At(lease).size, 2 * kMiB) << "its first chunk stays";
  world.Grow(owner, lease, 10 * kMiB);
  EXPECT_THAT(world.At(lease).chunks, ElementsAre(2 * kMiB, 8 * kMiB));
}

TEST(LedgerElasticTest, AShrinkWaitsForWhoHasItMapped) {
  ElasticWorld world;
  const SessionId owner = world.Open(1000), reader = world.Open(1001), late = world.Open(1002);
  const LeaseId lease = world.Lend(owner, Elastic(2 * kMiB));
  world.Grow(owner, lease, 4 * kMiB);
  world.Hold(reader, lease, Access::kReadOnly);
  world.Grow(owner, lease, 6 * kMiB);
  EXPECT_THAT(world.Told(EventType::kResized, lease), ElementsAre(reader));
  ASSERT_TRUE(world.Ask(owner, lease, 4 * kMiB, 2).ok());
  EXPECT_EQ(world.At(lease).size, 4 * kMiB) << "the reader never had the third chunk";
  ASSERT_TRUE(world.Ask(owner, lease, 2 * kMiB, 1).ok());
  EXPECT_EQ(world.At(lease).size, 4 * kMiB);
  EXPECT_EQ(world.At(lease).target, 2 * kMiB);
  EXPECT_THAT(world.Told(EventType::kResized, lease), ElementsAre(reader, reader));
  ASSERT_TRUE(world.Ask(owner, lease, 2 * kMiB, 1).ok());
  EXPECT_THAT(world.Told(EventType::kResized, lease), ElementsAre(reader, reader)) << "told once";
  world.Hold(late, lease, Access::kReadOnly);
  EXPECT_EQ(world.At(lease).holders.back().chunks, 1u) << "who comes now gets what stays";
  EXPECT_EQ(world.Refresh(reader, lease, 2).value(), 1u);
  EXPECT_EQ(world.At(lease).size, 4 * kMiB) << "it has it still";
  EXPECT_EQ(world.Refresh(reader, lease, 1).value(), 1u);
  EXPECT_EQ(world.At(lease).size, 2 * kMiB);
  EXPECT_FALSE(world.At(world.LastCut()).quarantined);
  EXPECT_THAT(world.Told(EventType::kResized, lease), ElementsAre(reader, reader, owner));
  EXPECT_EQ(world.Refresh(reader, lease, 1).value(), 1u);
}

TEST(LedgerElasticTest, WhoDiesOrClosesHasLetGo) {
  for (const std::string how : {"dies", "closes", "is revoked", "is left alone"}) {
    ElasticWorld world;
    const SessionId owner = world.Open(1000), reader = world.Open(1001);
    const LeaseId lease = world.Lend(owner, Elastic(2 * kMiB));
    world.Grow(owner, lease, 4 * kMiB);
    world.Hold(reader, lease, Access::kReadOnly);
    ASSERT_TRUE(world.Ask(owner, lease, 2 * kMiB, 1).ok());
    ASSERT_EQ(world.At(lease).target, 2 * kMiB);
    if (how == "dies") world.End(reader);
    if (how == "closes") EXPECT_TRUE(world.Close(reader, lease).ok());
    if (how == "is left alone") world.End(reader, /*process_lives=*/true);
    if (how == "is revoked") {
      EXPECT_TRUE(world.Revoke(lease, /*force=*/true).ok());
    } else {
      EXPECT_EQ(world.At(lease).size, 2 * kMiB) << how;
    }
    const bool may_be_mapped = how == "is left alone" || how == "is revoked";
    EXPECT_EQ(world.At(world.LastCut()).quarantined, may_be_mapped) << how;
  }
}

TEST(LedgerElasticTest, WhatALivingProcessNeverHadIsNotQuarantined) {
  ElasticWorld world;
  const SessionId owner = world.Open(1000), reader = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Elastic(2 * kMiB));
  world.Hold(reader, lease, Access::kReadOnly);
  world.End(reader, /*process_lives=*/true);
  world.Grow(owner, lease, 4 * kMiB);
  ASSERT_TRUE(world.Ask(owner, lease, 2 * kMiB, 1).ok());
  EXPECT_FALSE(world.At(world.LastCut()).quarantined);
  ASSERT_TRUE(world.Release(owner, lease).ok());
  EXPECT_TRUE(world.At(lease).quarantined) << "its first chunk may be mapped";
}

TEST(LedgerElasticTest, GrowingAgainUndoesAShrinkThatWaits) {
  ElasticWorld world;
  const SessionId owner = world.Open(1000), reader = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Elastic(2 * kMiB));
  world.Grow(owner, lease, 4 * kMiB);
  world.Hold(reader, lease, Access::kReadOnly);
  ASSERT_TRUE(world.Ask(owner, lease, 2 * kMiB, 1).ok());
  const Resized grows = world.Ask(owner, lease, 6 * kMiB, 1).value();
  EXPECT_EQ(world.At(lease).target, 0u);
  EXPECT_TRUE(world.Make(grows.group));
  EXPECT_THAT(world.At(lease).chunks, ElementsAre(2 * kMiB, 2 * kMiB, 2 * kMiB));
  EXPECT_THAT(world.Seen(Effect::Kind::kCut), IsEmpty());
  EXPECT_EQ(world.Refresh(reader, lease, 2).value(), 3u);
}

TEST(LedgerElasticTest, AnOwnerWhoSaysThatHeHasItMappedHoldsItUpHimself) {
  ElasticWorld world;
  const SessionId owner = world.Open(1000);
  const LeaseId lease = world.Lend(owner, Elastic(2 * kMiB));
  world.Grow(owner, lease, 4 * kMiB);
  ASSERT_TRUE(world.Ask(owner, lease, 2 * kMiB, 2).ok());
  EXPECT_EQ(world.At(lease).target, 2 * kMiB);
  ASSERT_TRUE(world.Ask(owner, lease, 2 * kMiB, 1).ok());
  EXPECT_EQ(world.At(lease).size, 2 * kMiB);
}

TEST(LedgerElasticTest, AGrowthWaitsItsTurnLikeANewLease) {
  ElasticWorld world;
  const SessionId owner = world.Open(1000), other = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Elastic(kGiB, 100 * kGiB));
  const LeaseId filler = world.Lend(other, 98 * kGiB);
  ExpectRefused(world.Ask(owner, lease, 3 * kGiB, 1), Code::kUnavailable, Reason::kMemoryShort);
  EXPECT_EQ(world.At(lease).growth, LeaseId{});
  const LeaseId first = world.Queue(other, 2 * kGiB);
  const Resized grows = world.Ask(owner, lease, 2 * kGiB, 1, hours(1)).value();
  EXPECT_EQ(grows.state, State::kQueued) << "the other was there first";
  EXPECT_EQ(world.ledger.QueuePosition(grows.group), 2u);
  EXPECT_TRUE(world.ledger.FindGroup(owner, grows.growth).ok()) << "to be awaited";
  world.Return(other, filler);
  EXPECT_EQ(world.StateOf(first), State::kMaking);
  EXPECT_EQ(world.StateOf(grows.growth), State::kMaking);
  EXPECT_TRUE(world.Make(grows.group));
  EXPECT_EQ(world.At(lease).size, 2 * kGiB);
  EXPECT_THAT(world.Told(EventType::kResized, lease), ElementsAre(owner)) << "as he waited";
}

TEST(LedgerElasticTest, AGrowthIsGivenUpExpiresOrFailsAloneAndIsAskedForAgain) {
  ElasticWorld world;
  const SessionId owner = world.Open(1000), other = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Elastic(kGiB, 100 * kGiB));
  const LeaseId filler = world.Lend(other, 99 * kGiB);
  Resized grows = world.Ask(owner, lease, 2 * kGiB, 1, hours(1)).value();
  EXPECT_TRUE(world.Release(owner, grows.growth).ok());
  EXPECT_TRUE(world.Gone(grows.growth));
  EXPECT_EQ(world.At(lease).growth, LeaseId{});
  grows = world.Ask(owner, lease, 2 * kGiB, 1, seconds(1)).value();
  world.Pass(seconds(2));
  EXPECT_EQ(world.Failure(grows.group)->reason, Reason::kWaitOver);
  grows = world.Ask(owner, lease, 2 * kGiB, 1, hours(1)).value();
  const Resized larger = world.Ask(owner, lease, 3 * kGiB, 1, hours(1)).value();
  EXPECT_EQ(world.Failure(grows.group)->code, Code::kCancelled) << "another size was asked for";
  ASSERT_TRUE(world.Ask(owner, lease, kGiB, 1).ok());
  EXPECT_EQ(world.Failure(larger.group)->code, Code::kCancelled) << "the size that it has";
  world.Return(other, filler);
  grows = world.Ask(owner, lease, 2 * kGiB, 1).value();
  world.Fail(grows.group, Reason::kDriver);
  EXPECT_EQ(world.At(lease).size, kGiB);
  EXPECT_EQ(world.At(lease).state, State::kLeased);
  world.Grow(owner, lease, 2 * kGiB);
}

TEST(LedgerElasticTest, AGrowthEndsWithItsOwner) {
  for (const std::string how : {"dies", "releases", "is revoked", "loses the GPU"}) {
    for (const bool making : {true, false}) {
      ElasticWorld world;
      const SessionId owner = world.Open(1000), other = world.Open(1001);
      const LeaseId lease = world.Lend(owner, Elastic(kGiB, 100 * kGiB));
      if (!making) world.Lend(other, 99 * kGiB);
      const Resized grows = world.Ask(owner, lease, 2 * kGiB, 1, hours(1)).value();
      ASSERT_EQ(grows.state, making ? State::kMaking : State::kQueued);
      if (how == "dies") world.End(owner);
      if (how == "releases") EXPECT_TRUE(world.Release(owner, lease).ok());
      if (how == "is revoked") EXPECT_TRUE(world.Revoke(lease).ok());
      if (how == "loses the GPU") world.ledger.LosePool(0, "fell off", world.now, world.log);
      EXPECT_NE(world.Failure(grows.group), nullptr) << how;
      EXPECT_EQ(world.ledger.CheckInvariants(), "") << how;
      if (!making) continue;
      EXPECT_FALSE(world.Make(grows.group)) << how;
      EXPECT_TRUE(world.Destroying(grows.growth)) << how;
      world.Destroyed(grows.growth);
      EXPECT_EQ(world.ledger.CheckInvariants(), "") << how;
    }
  }
}

TEST(LedgerElasticTest, AQueuedGrowthThatEndsLetsTheNextPast) {
  ElasticWorld world;
  const SessionId owner = world.Open(1000), other = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Elastic(kGiB, 100 * kGiB));
  world.Lend(other, 97 * kGiB);
  const Resized grows = world.Ask(owner, lease, 4 * kGiB, 1, hours(1)).value();
  const LeaseId next = world.Queue(other, kGiB);
  EXPECT_EQ(world.StateOf(next), State::kQueued) << "the growth reserves what is there";
  ASSERT_TRUE(world.Release(owner, lease).ok());
  EXPECT_TRUE(world.Gone(grows.growth));
  EXPECT_EQ(world.StateOf(next), State::kMaking);
}

TEST(LedgerElasticTest, LimitsCountWhatItHasAndWhatItAsksFor) {
  ElasticWorld world;
  const SessionId owner = world.Open(world.Client(1000, 4 * kGiB));
  const LeaseId lease = world.Lend(owner, Elastic(kGiB, 200 * kGiB));
  ExpectRefused(world.Ask(owner, lease, 5 * kGiB, 1, hours(1)), Code::kInvalidArgument,
                Reason::kTooLarge);
  ExpectRefused(world.Ask(owner, lease, 150 * kGiB, 1, hours(1)), Code::kInvalidArgument,
                Reason::kTooLarge);
  const LeaseId other = world.Lend(owner, 2 * kGiB);
  ExpectRefused(world.Ask(owner, lease, 3 * kGiB, 1), Code::kResourceExhausted,
                Reason::kTenantLimit);
  world.Return(owner, other);
  world.Grow(owner, lease, 4 * kGiB);
}

TEST(LedgerElasticTest, ItsBytesCountAsLastingWhileItLasts) {
  Options options = OneGpu();
  options.limits.lasting_bytes_per_user = 4 * kGiB;
  ElasticWorld world(std::move(options));
  const SessionId owner = world.Open(1000);
  AllocationSpec spec = Elastic(kGiB);
  spec.linger = kForever;
  const LeaseId lease = world.Lend(owner, spec);
  ExpectRefused(world.Ask(owner, lease, 5 * kGiB, 1), Code::kResourceExhausted,
                Reason::kSessionLimit);
  world.Grow(owner, lease, 4 * kGiB);
  const UserSpec user = world.ledger.FindSession(owner)->spec.user;
  EXPECT_EQ(world.ledger.LastingBytes(user), 4 * kGiB);
  ASSERT_TRUE(world.Ask(owner, lease, kGiB, 1).ok());
  EXPECT_EQ(world.ledger.LastingBytes(user), kGiB);
  world.End(owner);
  const SessionId heir = world.Open(1000);
  ExpectRefused(world.Ask(heir, lease, 2 * kGiB, 1), Code::kNotFound, Reason::kNotOpenable);
  ASSERT_TRUE(world.ledger.Claim(heir, lease, world.now, world.log).ok());
  world.Grow(heir, lease, 2 * kGiB);
}

TEST(LedgerElasticTest, WhatMakesNoSenseIsRefusedAndChangesNothing) {
  ElasticWorld world;
  const SessionId owner = world.Open(1000), reader = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Elastic(kGiB, 4 * kGiB));
  const LeaseId fixed = world.Lend(owner, kGiB);
  world.Hold(reader, lease, Access::kReadOnly);
  ExpectRefused(world.Ask(owner, lease, 0, 1), Code::kInvalidArgument, Reason::kBadField);
  ExpectRefused(world.Ask(owner, lease, 4 * kGiB + 1, 1), Code::kInvalidArgument,
                Reason::kBadField);
  ExpectRefused(world.Ask(owner, lease, 2 * kGiB, 2), Code::kInvalidArgument, Reason::kBadField);
  ExpectRefused(world.Ask(owner, lease, 2 * kGiB, 1, -seconds(1)), Code::kInvalidArgument,
                Reason::kBadField);
  ExpectRefused(world.Ask(owner, fixed, 2 * kGiB, 1), Code::kFailedPrecondition,
                Reason::kUnsupported);
  ExpectRefused(world.Ask(reader, lease, 2 * kGiB, 1), Code::kNotFound, Reason::kNotOpenable);
  ExpectRefused(world.Refresh(reader, lease, 2), Code::kInvalidArgument, Reason::kBadField);
  ExpectRefused(world.Refresh(reader, fixed, 0), Code::kNotFound, Reason::kNotOpenable);
  const Resized grows = world.Ask(owner, lease, 2 * kGiB, 1).value();
  ExpectRefused(world.ledger.Seal(owner, lease, "", nullptr, world.now, world.log),
                Code::kFailedPrecondition, Reason::kNotSealed);
  EXPECT_FALSE(world.OpenLease(reader, grows.growth).ok()) << "a growth is nobody's to open";
  EXPECT_TRUE(world.Make(grows.group));
  ASSERT_TRUE(world.ledger.Seal(owner, lease, "", nullptr, world.now, world.log).ok());
  ExpectRefused(world.Ask(owner, lease, kGiB, 1), Code::kFailedPrecondition, Reason::kSealed);
  EXPECT_EQ(world.Refresh(reader, lease, 1).value(), 2u) << "who reads it gets all of it";
  ASSERT_TRUE(world.Close(owner, lease).ok());
  AllocationSpec host = HostSpec(kMiB);
  host.reserve = kGiB;
  AllocationSpec small = Elastic(kGiB, kMiB);
  AllocationSpec large = Elastic(kGiB, kLargestReserve + 1);
  for (const AllocationSpec& spec : {host, small, large})
    ExpectRefused(world.World::Ask(owner, {spec}), Code::kInvalidArgument, Reason::kBadField);
}

TEST(LedgerElasticTest, ItIsAgainWhatItWasInAnotherLedger) {
  Options options = OneGpu();
  options.notes_changes = true;
  ElasticWorld world(options);
  const SessionId owner = world.Open(1000), reader = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Elastic(2 * kMiB));
  world.Grow(owner, lease, 4 * kMiB);
  world.Hold(reader, lease, Access::kReadOnly);
  (void)world.ledger.TakeChanges();
  world.Grow(owner, lease, 6 * kMiB);
  EXPECT_THAT(world.ledger.TakeChanges(), testing::Contains(lease));
  ASSERT_TRUE(world.Ask(owner, lease, 2 * kMiB, 1).ok());
  const Resized grows = world.Ask(owner, world.Lend(owner, Elastic(kGiB)), 2 * kGiB, 1).value();
  EXPECT_FALSE(world.ledger.Keepable(grows.growth)) << "who waits asks again";
  const RestoredLease kept = *world.ledger.Keepable(lease);
  for (const bool reader_lives : {true, false}) {
    ElasticWorld next(options);
    ASSERT_TRUE(next.ledger.RestoreSession(owner, next.Client(1000), next.now).ok());
    if (reader_lives)
      ASSERT_TRUE(next.ledger.RestoreSession(reader, next.Client(1001), next.now).ok());
    ASSERT_TRUE(next.ledger.RestoreLease(kept, next.now, next.log).ok());
    EXPECT_EQ(next.At(lease).reserved, 64 * kGiB);
    if (!reader_lives) {
      EXPECT_EQ(next.At(lease).size, 2 * kMiB) << "who held it up is gone";
      continue;
    }
    EXPECT_EQ(next.At(lease).target, 2 * kMiB);
    EXPECT_EQ(next.Refresh(reader, lease, 1).value(), 1u);
    EXPECT_EQ(next.At(lease).size, 2 * kMiB);
    next.Grow(owner, lease, 6 * kMiB);
  }
}

}  // namespace
}  // namespace gpulease::ledger
