// SPDX-License-Identifier: Apache-2.0
#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

AllocationSpec Lasting(std::string name, Duration linger, Bytes size = kGiB) {
  AllocationSpec spec = Named(size, std::move(name), 0666);
  spec.linger = linger;
  return spec;
}

AllocationSpec Loading(std::string name) {
  AllocationSpec spec = Named(kGiB, std::move(name), 0666);
  spec.loading = true;
  return spec;
}

struct LastingWorld : World {
  using World::World;
  Status Seal(SessionId session, LeaseId lease, std::string tag = "v1") {
    return ledger.Seal(session, lease, std::move(tag), nullptr, now, log);
  }
  Result<Opened> Claim(SessionId session, LeaseId lease) {
    return ledger.Claim(session, lease, now, log);
  }
  std::size_t Loaded(LeaseId lease) const {
    std::size_t count = 0;
    for (const Effect& effect : Seen(Effect::Kind::kLoaded)) count += effect.lease == lease;
    return count;
  }
};

TEST(LedgerSealTest, ASealedLeaseOpensForReadingAloneForEverybody) {
  LastingWorld world;
  const SessionId owner = world.Open(1000), reader = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Named(kGiB, "weights", 0666));
  ASSERT_TRUE(world.Seal(owner, lease).ok());
  EXPECT_TRUE(world.ledger.FindLease(lease)->sealed);
  EXPECT_EQ(world.ledger.FindLease(lease)->content_tag, "v1");
  for (const SessionId session : {owner, reader}) {
    ExpectRefused(world.OpenLease(session, lease), Code::kFailedPrecondition, Reason::kSealed);
    EXPECT_TRUE(world.OpenLease(session, lease, Access::kReadOnly).ok());
  }
  EXPECT_TRUE(world.Seal(owner, lease).ok()) << "again, as a retry does";
  ExpectRefused(world.Seal(owner, lease, "v2"), Code::kFailedPrecondition, Reason::kSealed);
  EXPECT_FALSE(world.Seal(reader, lease).ok()) << "its owner alone";
}

TEST(LedgerSealTest, IsRefusedWhileAnotherHasItOpenForWriting) {
  LastingWorld world;
  const SessionId owner = world.Open(1000), writer = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Named(kGiB, "weights", 0666));
  world.Hold(writer, lease);
  const Status refused = world.Seal(owner, lease);
  ExpectRefused(refused, Code::kFailedPrecondition, Reason::kNotSealed);
  EXPECT_THAT(refused.error().message, HasSubstr("process 1002"));
  EXPECT_FALSE(world.ledger.FindLease(lease)->sealed);
  ASSERT_TRUE(world.Close(writer, lease).ok());
  EXPECT_TRUE(world.Seal(owner, lease).ok());
}

TEST(LedgerSealTest, TagAndDirectoryCountAsLabelsDo) {
  Options options = OneGpu();
  options.limits.label_bytes_per_user = 100;
  LastingWorld world(std::move(options));
  const SessionId owner = world.Open();
  const LeaseId lease = world.Lend(owner, Named(kGiB, "weights"));
  ExpectRefused(world.ledger.Seal(owner, lease, "t", std::make_shared<std::string>(200, 'x'),
                                  world.now, world.log),
                Code::kResourceExhausted, Reason::kSessionLimit);
  EXPECT_FALSE(world.ledger.FindLease(lease)->sealed);
}

TEST(LedgerSealTest, WhatIsBeingLoadedIsNobodyElsesUntilItIsSealed) {
  LastingWorld world;
  const SessionId filler = world.Open(1000), reader = world.Open(1000), root = world.Open(0);
  const LeaseId lease = world.Lend(filler, Loading("weights"));
  for (const SessionId session : {reader, root}) {
    ExpectRefused(world.OpenLease(session, lease, Access::kReadOnly), Code::kFailedPrecondition,
                  Reason::kNotSealed);
  }
  ExpectRefused(world.Ask(reader, {Loading("weights")}), Code::kAlreadyExists, Reason::kNameTaken);
  EXPECT_EQ(world.Loaded(lease), 0u);
  ASSERT_TRUE(world.Seal(filler, lease).ok());
  EXPECT_EQ(world.Loaded(lease), 1u);
  EXPECT_TRUE(world.OpenLease(reader, lease, Access::kReadOnly).ok());
  world.End(filler);
  EXPECT_EQ(world.Loaded(lease), 1u);
}

TEST(LedgerSealTest, AFillerThatEndsOrGivesUpLeavesTheNameToTheNextWithFreshMemory) {
  LastingWorld world;
  for (const bool dies : {true, false}) {
    const SessionId filler = world.Open(1000), next = world.Open(1000);
    AllocationSpec spec = Loading("weights");
    spec.linger = kForever;
    const LeaseId lease = world.Lend(filler, spec);
    const std::uint64_t generation = world.ledger.FindLease(lease)->generation;
    if (dies) {
      world.End(filler);
    } else {
      ASSERT_TRUE(world.Release(filler, lease).ok());
    }
    EXPECT_EQ(world.Loaded(lease), 1u);
    EXPECT_TRUE(world.Destroying(lease)) << "half-filled memory does not last";
    const LeaseId again = world.Lend(next, Loading("weights"));
    EXPECT_NE(again, lease);
    EXPECT_GT(world.ledger.FindLease(again)->generation, generation);
    world.End(next);
  }
}

TEST(LedgerSealTest, ALoaderThatStillWaitsForMemoryHoldsTheName) {
  LastingWorld world;
  const SessionId holder = world.Open(1000), filler = world.Open(1000), other = world.Open(1000);
  world.Lend(holder, 100 * kGiB);
  const Allocated queued = world.Ask(filler, {Loading("weights")}, std::chrono::hours(1)).value();
  ExpectRefused(world.OpenLease(other, queued.leases[0], Access::kReadOnly),
                Code::kFailedPrecondition, Reason::kNotSealed);
  world.End(filler);
  EXPECT_EQ(world.Loaded(queued.leases[0]), 1u);
  EXPECT_TRUE(world.Gone(queued.leases[0]));
}

TEST(LedgerLastingTest, ALastingLeaseKeepsItsNameWhenItsOwnerDiesAndIsClaimed) {
  LastingWorld world;
  const SessionId owner = world.Open(1000), reader = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Lasting("weights", kForever));
  world.Hold(reader, lease, Access::kReadOnly);
  world.End(owner);
  EXPECT_THAT(world.Told(EventType::kOwnerGone, lease), ElementsAre(reader));
  ASSERT_TRUE(world.Close(reader, lease).ok());
  world.Pass(std::chrono::hours(1000));
  EXPECT_TRUE(IsOrphan(*world.ledger.FindLease(lease)));
  EXPECT_EQ(world.Use().leased, kGiB);
  EXPECT_TRUE(
      world.ledger.OpenByName(reader, 1000, "weights", Access::kReadOnly, world.now, world.log)
          .ok());
  ExpectRefused(world.Claim(reader, lease), Code::kPermissionDenied, Reason::kNotOpenable);
  const SessionId heir = world.Open(1000);
  ASSERT_TRUE(world.Claim(heir, lease).ok());
  EXPECT_EQ(world.ledger.FindLease(lease)->owner, heir);
  EXPECT_EQ(world.ledger.FindSession(heir)->device_bytes, kGiB);
  EXPECT_TRUE(world.Claim(heir, lease).ok()) << "again, as a retry does";
  const SessionId late = world.Open(1000);
  ExpectRefused(world.Claim(late, lease), Code::kFailedPrecondition, Reason::kUnspecified);
  ASSERT_TRUE(world.Release(heir, lease).ok());
  EXPECT_EQ(world.StateOf(lease), State::kReleased) << "the reader has it open";
  EXPECT_THAT(world.Told(EventType::kReleased, lease), ElementsAre(reader));
}

TEST(LedgerLastingTest, AnOrphanWithoutHoldersEndsWhenItsGraceIsOver) {
  LastingWorld world;
  const SessionId owner = world.Open(1000);
  const LeaseId lease = world.Lend(owner, Lasting("cache", seconds(10)));
  world.End(owner);
  EXPECT_EQ(world.ledger.NextDeadline(), world.now + seconds(10));
  world.Pass(seconds(9));
  const SessionId reader = world.Open(1001);
  world.Hold(reader, lease, Access::kReadOnly);
  world.Pass(seconds(60));
  EXPECT_FALSE(world.Destroying(lease)) << "somebody has it open";
  ASSERT_TRUE(world.Close(reader, lease).ok());
  world.Pass(seconds(9));
  EXPECT_FALSE(world.Destroying(lease));
  world.Pass(seconds(1));
  EXPECT_TRUE(world.Destroying(lease));
  EXPECT_EQ(world.ledger.FindByName(1000, "cache"), nullptr);
}

TEST(LedgerLastingTest, AnOwnerThatClosesItLeavesItToOthers) {
  LastingWorld world;
  const SessionId owner = world.Open(1000), heir = world.Open(1000);
  const LeaseId lease = world.Lend(owner, Lasting("cache", seconds(10)));
  ASSERT_TRUE(world.Close(owner, lease).ok());
  EXPECT_TRUE(IsOrphan(*world.ledger.FindLease(lease)));
  EXPECT_EQ(world.ledger.NextDeadline(), world.now + seconds(10));
  EXPECT_TRUE(world.Claim(heir, lease).ok());
  // What lasts no longer than its owner stays his.
  const LeaseId plain = world.Lend(owner, Named(kGiB, "plain"));
  ASSERT_TRUE(world.Close(owner, plain).ok());
  EXPECT_EQ(world.ledger.FindLease(plain)->owner, owner);
}

TEST(LedgerLastingTest, ItsUserReleasesAnOrphanFromAnySession) {
  LastingWorld world;
  const SessionId owner = world.Open(1000), other = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Lasting("weights", kForever));
  world.End(owner);
  EXPECT_FALSE(world.Release(other, lease).ok());
  EXPECT_TRUE(
      world.ledger.Release({}, world.Client(1000).user, lease, false, world.now, world.log).ok());
  EXPECT_TRUE(world.Destroying(lease));
}

TEST(LedgerLastingTest, LimitsHoldForWhatMayOutliveItsOwner) {
  Options options = OneGpu();
  options.limits.lasting_bytes_per_user = 3 * kGiB;
  options.limits.longest_linger = seconds(60);
  LastingWorld world(std::move(options));
  const SessionId owner = world.Open();
  ExpectRefused(world.Ask(owner, {Lasting("a", kForever)}), Code::kInvalidArgument,
                Reason::kBadField);
  const LeaseId lease = world.Lend(owner, Lasting("a", seconds(60), 2 * kGiB));
  ExpectRefused(world.Ask(owner, {Lasting("b", seconds(60), 2 * kGiB)}), Code::kResourceExhausted,
                Reason::kSessionLimit);
  EXPECT_TRUE(world.Ask(owner, {Named(2 * kGiB, "b")}).ok());
  world.Return(owner, lease);
  EXPECT_TRUE(world.Ask(owner, {Lasting("c", seconds(60), 2 * kGiB)}).ok());
}

TEST(LedgerLastingTest, OneOfSeveralThatWereAskedForTogetherIsClaimedByItself) {
  LastingWorld world;
  const SessionId owner = world.Open(1000);
  const Allocated both = world.Ask(owner, {Lasting("a", kForever), Lasting("b", kForever)}).value();
  ASSERT_TRUE(world.Make(both.group));
  for (const LeaseId lease : both.leases) world.ledger.Take(owner, lease, world.now, world.log);
  world.End(owner);
  const SessionId first = world.Open(1000), second = world.Open(1000);
  EXPECT_TRUE(world.Claim(first, both.leases[0]).ok());
  EXPECT_TRUE(world.Claim(second, both.leases[1]).ok());
  EXPECT_TRUE(world.Release(first, both.leases[0]).ok());
  EXPECT_EQ(world.ledger.FindLease(both.leases[1])->owner, second);
}

TEST(LedgerLastingTest, AnOfferThatNobodyTookDoesNotLast) {
  LastingWorld world;
  const SessionId owner = world.Open(1000);
  const LeaseId lease = world.Offer(owner, Lasting("weights", kForever));
  world.End(owner);
  EXPECT_TRUE(world.Destroying(lease));
}

TEST(LedgerLastingTest, ItIsRestoredAsItWas) {
  LastingWorld world;
  const SessionId owner = world.Open(1000);
  const LeaseId sealed = world.Lend(owner, Lasting("weights", seconds(10)));
  ASSERT_TRUE(world.Seal(owner, sealed).ok());
  AllocationSpec half = Loading("half");
  half.linger = kForever;
  const LeaseId loading = world.Lend(owner, half);
  const RestoredLease kept = world.ledger.Keepable(sealed).value();
  const RestoredLease kept_loading = world.ledger.Keepable(loading).value();
  LastingWorld next;
  // Its owner has ended meanwhile.
  ASSERT_TRUE(next.ledger.RestoreLease(kept, next.now, next.log).ok());
  ASSERT_TRUE(next.ledger.RestoreLease(kept_loading, next.now, next.log).ok());
  EXPECT_TRUE(IsOrphan(*next.ledger.FindLease(sealed)));
  EXPECT_TRUE(next.Destroying(loading)) << "what was half-filled ends";
  EXPECT_EQ(next.ledger.FindByName(1000, "weights")->id, sealed);
  EXPECT_EQ(next.ledger.FindLease(sealed)->content_tag, "v1");
  EXPECT_EQ(next.ledger.NextDeadline(), next.now + seconds(10));
  const RestoredLease orphan = next.ledger.Keepable(sealed).value();
  LastingWorld third;
  ASSERT_TRUE(third.ledger.RestoreLease(orphan, third.now + seconds(4), third.log).ok());
  EXPECT_EQ(third.ledger.NextDeadline(), third.now + seconds(10)) << "its time runs on";
}

}  // namespace
}  // namespace gpulease::ledger
