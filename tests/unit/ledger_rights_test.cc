// SPDX-License-Identifier: Apache-2.0
//
// Whose a lease is, who sees it, and what each user may have.
#include "tests/unit/ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

SessionId OpenIn(World& world, std::uint32_t uid, const Realm& realm) {
  SessionSpec spec = world.Client(uid);
  spec.user.administrator = false;
  spec.user.realm = realm;
  return world.Open(spec);
}

TEST(LedgerRightsTest, UsersOfDifferentRealmsAreStrangersWhateverTheirNumbers) {
  World world;
  const SessionId a = OpenIn(world, 0, "/a");
  const SessionId also_a = OpenIn(world, 0, "/a");
  const SessionId b = OpenIn(world, 0, "/b");
  const SessionId machine = OpenIn(world, 0, "");
  const LeaseId lease = world.Lend(a, Named(kGiB, "weights", 0660));  // group 0 is everybody's here
  EXPECT_TRUE(world.OpenLease(also_a, lease).ok());
  for (const SessionId stranger : {b, machine}) {
    ExpectRefused(world.OpenLease(stranger, lease, Access::kReadOnly), Code::kPermissionDenied,
                  Reason::kNotOpenable);
    const UserSpec& user = world.ledger.FindSession(stranger)->spec.user;
    EXPECT_FALSE(world.ledger.MaySee(user, *world.ledger.FindLease(lease)));
    ExpectRefused(world.Release(stranger, lease), Code::kNotFound, Reason::kNotOpenable);
  }
  const LeaseId shared = world.Lend(a, Named(kGiB, "shared", 0606));
  EXPECT_TRUE(world.OpenLease(b, shared).ok()) << "others are others";
}

TEST(LedgerRightsTest, EachRealmHasItsOwnNames) {
  World world;
  const SessionId a = OpenIn(world, 0, "/a");
  const SessionId b = OpenIn(world, 0, "/b");
  const LeaseId mine = world.Lend(a, Named(kGiB, "weights"));
  const LeaseId theirs = world.Lend(b, Named(kGiB, "weights"));
  EXPECT_EQ(world.ledger.FindByName({0, "/a"}, "weights")->id, mine);
  EXPECT_EQ(world.ledger.FindByName({0, "/b"}, "weights")->id, theirs);
  EXPECT_EQ(world.ledger.FindByName(0, "weights"), nullptr);
  const auto open = [&](const UserId& owner) {
    return world.ledger.OpenByName(a, owner, "weights", Access::kReadOnly, world.now, world.log);
  };
  EXPECT_TRUE(open({0, "/a"}).ok());
  const auto denied = open({0, "/b"});
  const auto missing = open({0, "/c"});
  ExpectRefused(denied, Code::kPermissionDenied, Reason::kNotOpenable);
  ExpectRefused(missing, Code::kPermissionDenied, Reason::kNotOpenable);
  EXPECT_EQ(denied.error().message.size(), missing.error().message.size());
}

TEST(LedgerRightsTest, ProcessesThatCannotBePlacedAreStrangersAndShareOneLimit) {
  Options options = OneGpu();
  options.limits.leases_per_user = 3;
  World world(options);
  const SessionId one = OpenIn(world, 1000, "?1");
  const SessionId two = OpenIn(world, 1000, "?2");
  const LeaseId lease = world.Lend(one, Named(kGiB, "weights", 0660));
  EXPECT_FALSE(world.OpenLease(two, lease, Access::kReadOnly).ok());
  world.Lend(two, Named(kGiB, "weights"));
  world.Lend(two, kGiB);
  for (const SessionId session : {one, two}) {
    const auto refused = world.Ask(session, kGiB);
    ExpectRefused(refused, Code::kResourceExhausted, Reason::kSessionLimit);
    EXPECT_THAT(refused.error().message, HasSubstr("leases_per_user"));
  }
  EXPECT_TRUE(world.Ask(OpenIn(world, 1000, ""), kGiB).ok()) << "the machine's user has his own";
}

TEST(LedgerRightsTest, AnObserverSeesAndDoesNotTouch) {
  World world;
  const SessionId owner = world.Open(1000);
  const LeaseId lease = world.Lend(owner, Named(kGiB, "weights"));
  SessionSpec spec = world.Client(1001);
  spec.user.observer = true;
  const SessionId observer = world.Open(spec);
  EXPECT_TRUE(world.ledger.MaySee(spec.user, *world.ledger.FindLease(lease)));
  ExpectRefused(world.OpenLease(observer, lease, Access::kReadOnly), Code::kPermissionDenied,
                Reason::kNotOpenable);
  ExpectRefused(world.Release(observer, lease), Code::kNotFound, Reason::kNotOpenable);
  ExpectRefused(world.Release(observer, lease, true), Code::kPermissionDenied,
                Reason::kUnspecified);
  AllocationSpec foreign = Spec(kGiB);
  foreign.gid = 4711;
  ExpectRefused(world.Ask(observer, {foreign}), Code::kInvalidArgument, Reason::kBadField);
}

TEST(LedgerRightsTest, NamesAndLabelsAreLimitedForEachUserUntilTheirLeaseIsGone) {
  Options options = OneGpu();
  options.limits.label_bytes_per_user = 300;
  World world(options);
  const SessionId session = world.Open(1000);
  AllocationSpec labelled = Named(kGiB, "name");  // 4 + 3 + 64 + 100
  labelled.labels = {{"key", std::string(100, 'v')}};
  const LeaseId first = world.Lend(session, labelled);
  labelled.name = "two";
  const auto refused = world.Ask(session, {labelled});
  ExpectRefused(refused, Code::kResourceExhausted, Reason::kSessionLimit);
  EXPECT_THAT(refused.error().message, HasSubstr("171 bytes of names and labels of at most 300"));
  EXPECT_THAT(refused.error().message, HasSubstr("label_bytes_per_user"));
  EXPECT_TRUE(world.Ask(session, kGiB).ok()) << "without labels it may have more";
  EXPECT_TRUE(world.Ask(world.Open(1001), {labelled}).ok()) << "another user has his own";
  labelled.labels["key2"] = std::string(300, 'v');
  ExpectRefused(world.Ask(world.Open(1002), {labelled}), Code::kResourceExhausted,
                Reason::kSessionLimit);
  world.Return(session, first);
  labelled.labels.erase("key2");
  EXPECT_TRUE(world.Ask(session, {labelled}).ok());
}

TEST(LedgerRightsTest, WhatStandsInTheWayIsNamedToThoseWhoMaySeeIt) {
  World world;
  const SessionId owner = world.Open(1000);
  const LeaseId large = world.Lend(owner, 90 * kGiB);
  const SessionId other = world.Open(1001);
  const LeaseId waiting = world.Queue(other, 50 * kGiB);
  const GroupId group = world.ledger.FindLease(waiting)->group;
  const std::vector<Blocker> hidden = world.ledger.Blockers(group, {.uid = 1001});
  ASSERT_THAT(hidden, SizeIs(1));
  EXPECT_EQ(hidden[0].lease_id, 0u);
  EXPECT_EQ(hidden[0].pid, 0);
  EXPECT_EQ(hidden[0].size_bytes, 90 * kGiB);
  for (const UserSpec& user : {UserSpec{.uid = 1000}, UserSpec{.uid = 7, .observer = true}}) {
    const std::vector<Blocker> shown = world.ledger.Blockers(group, user);
    ASSERT_THAT(shown, SizeIs(1));
    EXPECT_EQ(shown[0].lease_id, large.value);
    EXPECT_EQ(shown[0].pid, 1001);
  }
  const auto refused = world.Ask(world.Open(1002), 50 * kGiB);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, Not(HasSubstr(std::to_string(large.value))));
  EXPECT_EQ(refused.error().blockers[0].lease_id, 0u);
}

}  // namespace
}  // namespace gpulease::ledger
