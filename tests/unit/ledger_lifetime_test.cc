// SPDX-License-Identifier: Apache-2.0
#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

TEST(LedgerLifetimeTest, ReleaseWithoutHoldersDestroysAndFrees) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, kGiB);
  const Released released = world.Release(session, lease).value();
  EXPECT_EQ(released.state, State::kDestroying);
  EXPECT_EQ(released.holders, 0u);
  EXPECT_TRUE(world.Destroying(lease));
  EXPECT_EQ(world.Use().releasing, kGiB);
  world.Destroyed(lease);
  EXPECT_EQ(world.StateOf(lease), State::kReleasing);
  EXPECT_EQ(world.Use().free, 99 * kGiB);
  world.Observe(0, 0);
  EXPECT_TRUE(world.Gone(lease));
  EXPECT_EQ(world.Use().free, 100 * kGiB);
}

TEST(LedgerLifetimeTest, ReleaseWithHoldersKeepsTheLeaseForThemAlone) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open(), late = world.Open();
  const LeaseId lease = world.Lend(owner, Named(kGiB, "weights"));
  world.Hold(holder, lease);
  const Released released = world.Release(owner, lease).value();
  EXPECT_EQ(released.state, State::kReleased);
  EXPECT_EQ(released.holders, 1u);
  EXPECT_THAT(world.Told(EventType::kReleased, lease), ElementsAre(holder));
  EXPECT_EQ(world.ledger.FindByName(1000, "weights"), nullptr);
  ExpectRefused(world.OpenLease(late, lease), Code::kFailedPrecondition, Reason::kNotOpenable);
  EXPECT_TRUE(world.OpenLease(holder, lease)->already_open);
  ExpectRefused(world.Release(owner, lease), Code::kNotFound, Reason::kNotOpenable);
  ASSERT_TRUE(world.Close(holder, lease).ok());
  EXPECT_TRUE(world.Destroying(lease));
}

TEST(LedgerLifetimeTest, CloseByTheOwnerIsNoRelease) {
  World world;
  const SessionId owner = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  ASSERT_TRUE(world.Close(owner, lease).ok());
  EXPECT_EQ(world.StateOf(lease), State::kLeased);
  EXPECT_THAT(world.ledger.FindLease(lease)->holders, IsEmpty());
  ExpectRefused(world.Close(owner, lease), Code::kNotFound, Reason::kNotOpenable);
  EXPECT_FALSE(world.OpenLease(owner, lease)->already_open);
  EXPECT_EQ(world.ledger.FindLease(lease)->holders.size(), 1u);
}

TEST(LedgerLifetimeTest, CloseBeforeTakenLeavesTheLeaseWithItsOwner) {
  World world;
  const SessionId owner = world.Open();
  const LeaseId lease = world.Offer(owner, Spec(kGiB));
  ASSERT_TRUE(world.Close(owner, lease).ok());
  world.ledger.Take(owner, lease, world.now, world.log);
  EXPECT_EQ(world.StateOf(lease), State::kLeased);
  EXPECT_THAT(world.ledger.FindLease(lease)->holders, IsEmpty());
}

TEST(LedgerLifetimeTest, OpensTwiceAsOne) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  EXPECT_FALSE(world.OpenLease(holder, lease, Access::kReadOnly)->already_open);
  EXPECT_TRUE(world.OpenLease(holder, lease, Access::kReadOnly)->already_open);
  EXPECT_FALSE(world.OpenLease(holder, lease, Access::kReadWrite)->already_open);
  EXPECT_TRUE(world.OpenLease(holder, lease, Access::kReadOnly)->already_open);
  EXPECT_EQ(world.ledger.FindLease(lease)->holders.size(), 2u);
  ASSERT_TRUE(world.Close(holder, lease).ok());
  EXPECT_EQ(world.ledger.FindLease(lease)->holders.size(), 1u);
}

TEST(LedgerLifetimeTest, OpensByOwnerGroupAndModeAsAFile) {
  World world;
  SessionSpec member = world.Client(1001);
  member.user.groups = {7};
  SessionSpec maker = world.Client(1000);
  maker.user.groups = {7};
  const SessionId owner = world.Open(maker), own = world.Open(1000), group = world.Open(member),
                  other = world.Open(1002), root = world.Open(0);
  const auto lend = [&](std::uint32_t mode) {
    AllocationSpec spec = Spec(1);
    spec.mode = mode;
    spec.gid = 7;
    return world.Lend(owner, spec);
  };
  const auto may = [&](SessionId session, LeaseId lease, Access access) {
    const bool ok = world.OpenLease(session, lease, access).ok();
    if (ok) EXPECT_TRUE(world.Close(session, lease).ok());
    return ok;
  };
  const LeaseId secret = lend(0600), shared = lend(0640), open = lend(0664), odd = lend(0066);
  const Access ro = Access::kReadOnly, rw = Access::kReadWrite;
  EXPECT_TRUE(may(own, secret, rw));
  EXPECT_FALSE(may(group, secret, ro));
  EXPECT_FALSE(may(other, secret, ro));
  EXPECT_TRUE(may(root, secret, rw));
  EXPECT_TRUE(may(group, shared, ro));
  EXPECT_FALSE(may(group, shared, rw));
  EXPECT_FALSE(may(other, shared, ro));
  EXPECT_TRUE(may(group, open, rw));
  EXPECT_TRUE(may(other, open, ro));
  EXPECT_FALSE(may(other, open, rw));
  EXPECT_FALSE(may(own, odd, ro));  // the owner's class decides
  EXPECT_TRUE(may(other, odd, rw));
}

TEST(LedgerLifetimeTest, WritingNeedsReadingToo) {
  World world;
  const SessionId owner = world.Open(1000), other = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Named(1, "w", 0602));
  ExpectRefused(world.OpenLease(other, lease), Code::kPermissionDenied, Reason::kNotOpenable);
}

TEST(LedgerLifetimeTest, WhatIsNotThereAndWhatIsForbiddenLookAlike) {
  World world;
  const SessionId owner = world.Open(1000), other = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Named(1, "secret"));
  const auto by_name = [&](SessionId session, std::string_view name) {
    return world.ledger.OpenByName(session, 1000, name, Access::kReadOnly, world.now, world.log);
  };
  ExpectRefused(world.OpenLease(other, lease), Code::kPermissionDenied, Reason::kNotOpenable);
  ExpectRefused(world.OpenLease(other, LeaseId{12345}), Code::kPermissionDenied,
                Reason::kNotOpenable);
  ExpectRefused(world.OpenLease(owner, LeaseId{12345}), Code::kPermissionDenied,
                Reason::kNotOpenable);
  ExpectRefused(by_name(other, "secret"), Code::kPermissionDenied, Reason::kNotOpenable);
  ExpectRefused(by_name(other, "none"), Code::kPermissionDenied, Reason::kNotOpenable);
  ExpectRefused(by_name(owner, "none"), Code::kNotFound, Reason::kNotOpenable);
  EXPECT_EQ(by_name(world.Open(1000), "secret")->lease, lease);
}

TEST(LedgerLifetimeTest, WhatIsForbiddenByNameReadsAsWhatIsNotThere) {
  World world;
  const SessionId owner = world.Open(1000), other = world.Open(1001);
  world.Lend(owner, Named(1, "aaaa"));
  const auto message = [&](std::string_view name) {
    return world.ledger.OpenByName(other, 1000, name, Access::kReadOnly, world.now, world.log)
        .error()
        .message;
  };
  std::string there = message("aaaa");
  there.replace(there.find("aaaa"), 4, "bbbb");
  EXPECT_EQ(there, message("bbbb"));
}

TEST(LedgerLifetimeTest, DoesNotOpenWhatIsQueuedOrBeingMade) {
  World world;
  const SessionId owner = world.Open(), other = world.Open();
  const Allocated making = world.Ask(owner, 100 * kGiB).value();
  const LeaseId queued = world.Queue(owner, kGiB);
  ExpectRefused(world.OpenLease(other, making.leases[0]), Code::kFailedPrecondition,
                Reason::kUnspecified);
  ExpectRefused(world.OpenLease(other, queued), Code::kFailedPrecondition, Reason::kUnspecified);
}

TEST(LedgerLifetimeTest, RefusesMoreOpeningsThanAUserMayHave) {
  Options options = OneGpu();
  options.limits.leases_per_user = 2;
  World world(options);
  const SessionId owner = world.Open(1000), other = world.Open(1000);
  const LeaseId a = world.Lend(owner, 1);
  const SessionId third = world.Open(1000);
  world.Hold(other, a);
  world.Hold(third, a);
  ExpectRefused(world.OpenLease(world.Open(1000), a), Code::kResourceExhausted,
                Reason::kSessionLimit);
  ASSERT_TRUE(world.Close(other, a).ok());
  EXPECT_TRUE(world.OpenLease(other, a).ok());
}

TEST(LedgerLifetimeTest, DeclineOfAnOfferUndoesTheLease) {
  World world;
  const SessionId owner = world.Open();
  const LeaseId lease = world.Offer(owner, Spec(kGiB));
  world.ledger.Decline(owner, lease, world.now, world.log);
  EXPECT_TRUE(world.Destroying(lease));
  EXPECT_FALSE(world.ledger.FindLease(lease)->quarantined);
}

TEST(LedgerLifetimeTest, DeclineOfAnOpeningUndoesTheOpeningAndNotTheLease) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  ASSERT_TRUE(world.OpenLease(holder, lease).ok());
  world.ledger.Decline(holder, lease, world.now, world.log);
  EXPECT_EQ(world.StateOf(lease), State::kLeased);
  EXPECT_EQ(world.ledger.FindLease(lease)->holders.size(), 1u);
  EXPECT_EQ(world.ledger.FindSession(holder)->open, 0u);
}

TEST(LedgerLifetimeTest, DeclineOfARepeatedPushLeavesWhatWasTaken) {
  World world;
  const SessionId owner = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  world.ledger.Decline(owner, lease, world.now, world.log);
  EXPECT_EQ(world.ledger.FindLease(lease)->holders.size(), 1u);
}

TEST(LedgerLifetimeTest, DeclineOfAnOfferThatOthersHoldReleasesIt) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open();
  const LeaseId lease = world.Offer(owner, Spec(kGiB));
  world.Hold(holder, lease);
  world.ledger.Decline(owner, lease, world.now, world.log);
  EXPECT_EQ(world.StateOf(lease), State::kReleased);
}

TEST(LedgerLifetimeTest, ReleaseOfAQueuedLeaseEndsTheWaitOfItsWholeGroup) {
  World world;
  const SessionId session = world.Open();
  world.Lend(session, 100 * kGiB);
  const Allocated queued =
      world.Ask(session, {Spec(kGiB), Spec(kGiB)}, std::chrono::hours(1)).value();
  ASSERT_TRUE(world.Release(session, queued.leases[1]).ok());
  EXPECT_TRUE(world.Gone(queued.leases[0]));
  EXPECT_TRUE(world.Gone(queued.leases[1]));
  EXPECT_EQ(world.Failure(queued.group)->code, Code::kCancelled);
}

TEST(LedgerLifetimeTest, ReleaseWhileMakingDestroysWhatComesOut) {
  World world;
  const SessionId session = world.Open();
  const Allocated making = world.Ask(session, {Named(kGiB, "a")}).value();
  EXPECT_EQ(world.Release(session, making.leases[0])->state, State::kDestroying);
  EXPECT_EQ(world.Failure(making.group)->code, Code::kCancelled);
  EXPECT_EQ(world.ledger.FindByName(1000, "a"), nullptr);
  ExpectRefused(world.Release(session, making.leases[0]), Code::kNotFound, Reason::kNotOpenable);
  EXPECT_FALSE(world.Make(making.group));
  EXPECT_TRUE(world.Destroying(making.leases[0]));
}

TEST(LedgerLifetimeTest, NobodyButTheOwnerReleases) {
  World world;
  const SessionId owner = world.Open(1000), same_user = world.Open(1000);
  const LeaseId lease = world.Lend(owner, kGiB);
  ExpectRefused(world.Release(same_user, lease), Code::kNotFound, Reason::kNotOpenable);
  ExpectRefused(world.Release(owner, LeaseId{99}), Code::kNotFound, Reason::kNotOpenable);
  ExpectRefused(world.Release(owner, lease, true), Code::kPermissionDenied, Reason::kUnspecified);
  EXPECT_EQ(world.StateOf(lease), State::kLeased);
}

TEST(LedgerLifetimeTest, RevokingAsksEveryHolderAndWaitsForTheLast) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open();
  const LeaseId lease = world.Lend(owner, Named(kGiB, "weights"));
  world.Hold(holder, lease);
  const Released released = world.Revoke(lease).value();
  EXPECT_EQ(released.state, State::kRevoking);
  EXPECT_EQ(released.holders, 2u);
  EXPECT_THAT(world.Told(EventType::kRevoked, lease), UnorderedElementsAre(owner, holder));
  EXPECT_EQ(world.ledger.FindByName(1000, "weights"), nullptr);
  ExpectRefused(world.OpenLease(world.Open(), lease), Code::kFailedPrecondition,
                Reason::kNotOpenable);
  ASSERT_TRUE(world.Close(owner, lease).ok());
  EXPECT_EQ(world.StateOf(lease), State::kRevoking);
  EXPECT_FALSE(world.ledger.FindLease(lease)->owner);
  ASSERT_TRUE(world.Close(holder, lease).ok());
  EXPECT_TRUE(world.Destroying(lease));
  EXPECT_FALSE(world.ledger.FindLease(lease)->quarantined);
}

TEST(LedgerLifetimeTest, RevokingLeavesTheOwnerItsRelease) {
  World world;
  const SessionId owner = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  EXPECT_EQ(world.Revoke(lease)->state, State::kRevoking);
  EXPECT_EQ(world.Release(owner, lease)->state, State::kDestroying);
}

TEST(LedgerLifetimeTest, RevokingWhatNobodyHasOpenDestroysIt) {
  World world;
  const SessionId owner = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  ASSERT_TRUE(world.Close(owner, lease).ok());
  EXPECT_EQ(world.Revoke(lease)->state, State::kDestroying);
  EXPECT_THAT(world.Told(EventType::kRevoked, lease), ElementsAre(owner));
  EXPECT_EQ(world.Revoke(lease)->state, State::kDestroying);
}

TEST(LedgerLifetimeTest, RevokingCancelsWhatIsQueuedOrBeingMade) {
  World world;
  const SessionId owner = world.Open();
  const Allocated making = world.Ask(owner, 100 * kGiB).value();
  const LeaseId queued = world.Queue(owner, kGiB);
  ASSERT_TRUE(world.Revoke(queued).ok());
  EXPECT_TRUE(world.Gone(queued));
  EXPECT_THAT(world.Told(EventType::kRevoked, queued), ElementsAre(owner));
  ASSERT_TRUE(world.Revoke(making.leases[0]).ok());
  ASSERT_TRUE(world.Revoke(making.leases[0]).ok());
  EXPECT_FALSE(world.Make(making.group));
}

TEST(LedgerLifetimeTest, ForceEndsAllRightsAndQuarantines) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  world.Hold(holder, lease);
  const Released released = world.Revoke(lease, true).value();
  EXPECT_EQ(released.state, State::kDestroying);
  EXPECT_EQ(released.holders, 0u);
  EXPECT_THAT(world.Told(EventType::kRevoked, lease), UnorderedElementsAre(owner, holder));
  EXPECT_EQ(world.Use().quarantined, kGiB);
  ExpectRefused(world.Close(holder, lease), Code::kNotFound, Reason::kNotOpenable);
  world.Destroyed(lease);
  EXPECT_EQ(world.Use().quarantined, kGiB);
  world.Pass(seconds(60));
  EXPECT_EQ(world.StateOf(lease), State::kUnconfirmed);
  EXPECT_EQ(world.Use().quarantined, kGiB);
  EXPECT_EQ(world.Use().unconfirmed, 0u);
  world.Observe(0, kGiB);  // somebody maps it
  EXPECT_EQ(world.Use().quarantined, kGiB);
  world.Observe(0, 0);
  EXPECT_TRUE(world.Gone(lease));
}

TEST(LedgerLifetimeTest, ForceEndsWhatIsRevokedOrReleased) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open();
  const LeaseId revoked = world.Lend(owner, kGiB), released = world.Lend(owner, kGiB);
  world.Hold(holder, released);
  ASSERT_TRUE(world.Revoke(revoked).ok());
  ASSERT_TRUE(world.Release(owner, released).ok());
  for (const LeaseId lease : {revoked, released}) {
    EXPECT_EQ(world.Revoke(lease, true)->state, State::kDestroying);
    EXPECT_TRUE(world.ledger.FindLease(lease)->quarantined);
  }
}

TEST(LedgerLifetimeTest, ForceOnWhatNobodyHasOpenQuarantinesNothing) {
  World world;
  const SessionId owner = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  ASSERT_TRUE(world.Close(owner, lease).ok());
  ASSERT_TRUE(world.Revoke(lease, true).ok());
  EXPECT_FALSE(world.ledger.FindLease(lease)->quarantined);
}

TEST(LedgerLifetimeTest, ShowsALeaseToThoseWhoOwnHoldOrMayOpenIt) {
  World world;
  const SessionId owner = world.Open(1000), root = world.Open(0);
  const LeaseId secret = world.Lend(owner, kGiB), open = world.Lend(owner, Named(1, "o", 0644));
  const auto sees = [&](std::uint32_t uid, LeaseId lease) {
    UserSpec user;
    user.uid = uid;
    user.gid = 55;
    user.administrator = uid == 0;
    return world.ledger.MaySee(user, *world.ledger.FindLease(lease));
  };
  EXPECT_TRUE(sees(1000, secret));
  EXPECT_TRUE(sees(0, secret));
  EXPECT_FALSE(sees(1001, secret));
  EXPECT_TRUE(sees(1001, open));
  // A holder sees what it holds, whatever the mode says by then.
  world.Hold(root, secret);
  const SessionId reader = world.Open(1001);
  world.Hold(reader, open, Access::kReadOnly);
  ASSERT_TRUE(world.Release(owner, open).ok());
  EXPECT_TRUE(sees(1001, open));
}

TEST(LedgerLifetimeTest, IgnoresWhatItDoesNotKnow) {
  World world;
  const SessionId owner = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  const GroupId group = world.ledger.FindLease(lease)->group;
  EXPECT_FALSE(world.Make(group));
  EXPECT_FALSE(world.Make(GroupId{5}));
  world.Fail(group, Reason::kDriver);
  world.Destroyed(lease);
  world.ledger.ObserveLease(lease, false, world.now, world.log);
  world.ledger.Take(owner, LeaseId{5}, world.now, world.log);
  world.ledger.Take(SessionId{5}, lease, world.now, world.log);
  world.ledger.Decline(SessionId{5}, lease, world.now, world.log);
  world.Observe(17, 0);
  world.ledger.SetPoolUsable(17, false, "", world.now, world.log);
  EXPECT_EQ(world.StateOf(lease), State::kLeased);
  EXPECT_EQ(world.ledger.QueuePosition(group), 0u);
  EXPECT_THAT(world.ledger.Blockers(group, {}), IsEmpty());
  EXPECT_THAT(world.ledger.GroupLeases(GroupId{5}), IsEmpty());
}

}  // namespace
}  // namespace gpulease::ledger
