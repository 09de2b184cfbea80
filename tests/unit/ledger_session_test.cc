// SPDX-License-Identifier: Apache-2.0
#include <unordered_set>

#include "daemon/ledger/id_sequence.h"
#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(IdSequenceTest, NeverRepeatsAndStaysBelowTwoToThe53) {
  IdSequence ids(7);
  std::unordered_set<std::uint64_t> seen;
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t id = ids.Next();
    ASSERT_NE(id, 0u);
    ASSERT_LT(id, std::uint64_t{1} << 53);
    ASSERT_TRUE(seen.insert(id).second) << "draw " << i;
  }
}

TEST(IdSequenceTest, DependsOnTheSeedAlone) {
  IdSequence a(7), b(7), c(8);
  const std::uint64_t first = a.Next();
  EXPECT_EQ(first, b.Next());
  EXPECT_NE(first, c.Next());
}

TEST(LedgerSessionTest, RefusesMoreSessionsThanAUserMayHave) {
  Options options = OneGpu();
  options.limits.sessions_per_user = 2;
  World world(options);
  const SessionId first = world.Open(1000);
  world.Open(1000);
  ExpectRefused(world.ledger.OpenSession(world.Client(1000), world.now, world.log),
                Code::kResourceExhausted, Reason::kSessionLimit);
  world.Open(1001);
  world.End(first);
  EXPECT_TRUE(world.ledger.OpenSession(world.Client(1000), world.now, world.log).ok());
}

TEST(LedgerSessionTest, ResumesWithinGraceForTheSameProcessAlone) {
  World world;
  const SessionSpec client = world.Client(1000);
  const SessionId session = world.Open(client);
  world.Lend(session, kGiB);
  ExpectRefused(world.ledger.ResumeSession(session, client.process, world.now),
                Code::kFailedPrecondition, Reason::kSessionEnded);  // still connected
  world.ledger.LoseConnection(session, world.now, world.log);
  EXPECT_EQ(world.ledger.NextDeadline(), world.now + seconds(30));
  ExpectRefused(world.ledger.ResumeSession(session, client.process + 1, world.now),
                Code::kFailedPrecondition, Reason::kSessionEnded);
  EXPECT_TRUE(world.ledger.ResumeSession(session, client.process, world.now).ok());
  EXPECT_EQ(world.ledger.NextDeadline(), kNever);
  world.Pass(seconds(60));
  EXPECT_NE(world.ledger.FindSession(session), nullptr);
}

TEST(LedgerSessionTest, EndsWithItsConnectionWhenItHoldsNothing) {
  World world;
  const SessionId session = world.Open();
  world.ledger.LoseConnection(session, world.now, world.log);
  EXPECT_EQ(world.ledger.FindSession(session), nullptr);
  EXPECT_EQ(world.Seen(Effect::Kind::kForget).size(), 1u);
}

TEST(LedgerSessionTest, EndsWithItsGraceAndQuarantinesWhatTheProcessMayStillMap) {
  World world;
  const SessionSpec client = world.Client(1000);
  const SessionId session = world.Open(client);
  const LeaseId lease = world.Lend(session, kGiB);
  world.ledger.LoseConnection(session, world.now, world.log);
  world.Pass(seconds(30) - milliseconds(1));
  EXPECT_EQ(world.StateOf(lease), State::kLeased);
  world.Pass(milliseconds(1));
  EXPECT_EQ(world.ledger.FindSession(session), nullptr);
  ASSERT_EQ(world.Seen(Effect::Kind::kForget).size(), 1u);
  EXPECT_EQ(world.Seen(Effect::Kind::kForget)[0].session, session);
  EXPECT_TRUE(world.ledger.FindLease(lease)->quarantined);
  EXPECT_EQ(world.Use().quarantined, kGiB);
  ExpectRefused(world.ledger.ResumeSession(session, client.process, world.now),
                Code::kFailedPrecondition, Reason::kSessionEnded);
}

TEST(LedgerSessionTest, EndsOnceAndRefusesEverythingAfter) {
  World world;
  const SessionId session = world.Open();
  const SessionId other = world.Open();
  const LeaseId lease = world.Lend(other, kGiB);
  world.End(session);
  world.End(session);
  EXPECT_EQ(world.Seen(Effect::Kind::kForget).size(), 1u);
  const auto ended = [](const auto& result) {
    ExpectRefused(result, Code::kFailedPrecondition, Reason::kSessionEnded);
  };
  ended(world.Ask(session, kGiB));
  ended(world.OpenLease(session, lease));
  ended(world.ledger.OpenByName(session, 1000, "x", Access::kReadOnly, world.now, world.log));
  ended(world.Close(session, lease));
  ended(world.ledger.FindGroup(session, lease));
  ended(world.ledger.Release(session, {}, lease, false, world.now, world.log));
  world.ledger.Take(session, lease, world.now, world.log);
  world.ledger.Decline(session, lease, world.now, world.log);
  world.ledger.LoseConnection(session, world.now, world.log);
}

TEST(LedgerSessionTest, DeathCancelsWhatIsQueued) {
  World world;
  const SessionId holder = world.Open(1000), waiter = world.Open(1001);
  world.Lend(holder, 100 * kGiB);
  const LeaseId queued = world.Queue(waiter, kGiB);
  const GroupId group = world.ledger.FindLease(queued)->group;
  world.End(waiter);
  EXPECT_TRUE(world.Gone(queued));
  EXPECT_EQ(world.Failure(group)->reason, Reason::kSessionEnded);
  EXPECT_EQ(world.Use().queued, 0u);
}

TEST(LedgerSessionTest, DeathWhileMakingDestroysWhatComesOut) {
  World world;
  const SessionId session = world.Open();
  const Allocated made = world.Ask(session, {Spec(kGiB), Spec(kGiB)}).value();
  const Allocated failed = world.Ask(session, kGiB).value();
  world.End(session);
  EXPECT_EQ(world.Use().offered, 3 * kGiB);  // the executor is at it
  EXPECT_FALSE(world.Make(made.group));
  EXPECT_TRUE(world.Destroying(made.leases[0]));
  EXPECT_TRUE(world.Destroying(made.leases[1]));
  EXPECT_EQ(world.Use().releasing, 2 * kGiB);
  EXPECT_EQ(world.Use().quarantined, 0u);
  world.Fail(failed.group, Reason::kDriverMemoryShort);
  EXPECT_TRUE(world.Gone(failed.leases[0]));
  EXPECT_EQ(world.Use().offered, 0u);
}

TEST(LedgerSessionTest, DeathDestroysWhatIsOfferedOrLeasedAndNobodyElseHolds) {
  World world;
  const SessionId owner = world.Open();
  const LeaseId offered = world.Offer(owner, Spec(kGiB));
  const LeaseId leased = world.Lend(owner, kGiB);
  const LeaseId closed = world.Lend(owner, kGiB);
  ASSERT_TRUE(world.Close(owner, closed).ok());
  world.End(owner);
  for (const LeaseId lease : {offered, leased, closed}) {
    EXPECT_EQ(world.StateOf(lease), State::kDestroying);
    EXPECT_TRUE(world.Destroying(lease));
    EXPECT_FALSE(world.ledger.FindLease(lease)->quarantined);
  }
}

TEST(LedgerSessionTest, DeathOfTheOwnerLeavesTheLeaseToItsHoldersAndTellsThem) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open();
  const LeaseId lease = world.Lend(owner, Named(kGiB, "weights"));
  world.Hold(holder, lease);
  world.End(owner);
  EXPECT_EQ(world.StateOf(lease), State::kReleased);
  EXPECT_THAT(world.Told(EventType::kOwnerGone, lease), ElementsAre(holder));
  EXPECT_EQ(world.ledger.FindByName(1000, "weights"), nullptr);
  EXPECT_EQ(world.Use().leased, kGiB);
  world.End(holder);
  EXPECT_TRUE(world.Destroying(lease));
}

TEST(LedgerSessionTest, DeathOfAHolderClosesWhatItHadOpen) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  world.Hold(holder, lease);
  world.End(holder);
  EXPECT_EQ(world.StateOf(lease), State::kLeased);
  EXPECT_EQ(world.ledger.FindLease(lease)->holders.size(), 1u);
  EXPECT_THAT(world.Told(EventType::kReleased, lease), IsEmpty());
}

// A holder that said goodbye may have kept its mapping, though the lease outlived it.
TEST(LedgerSessionTest, AMappingKeptAfterAGoodbyeQuarantinesTheLeaseWhenItEndsLater) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  world.Hold(holder, lease);
  world.End(holder, true);
  ASSERT_TRUE(world.Release(owner, lease).ok());
  EXPECT_EQ(world.Use().quarantined, kGiB);
}

TEST(LedgerSessionTest, DeathWhileRevokedDestroysWhenTheLastHolderIsGone) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  world.Hold(holder, lease);
  ASSERT_TRUE(world.Revoke(lease).ok());
  world.End(owner);
  EXPECT_EQ(world.StateOf(lease), State::kRevoking);
  world.End(holder);
  EXPECT_TRUE(world.Destroying(lease));
}

TEST(LedgerSessionTest, CountsWhatASessionOwnsOpensAndIsChargedFor) {
  World world;
  const SessionId owner = world.Open(), holder = world.Open();
  const LeaseId lease = world.Lend(owner, kGiB);
  world.Lend(owner, HostSpec(kMiB));
  world.Hold(holder, lease);
  const Session* session = world.ledger.FindSession(owner);
  EXPECT_EQ(session->owned, 2u);
  EXPECT_EQ(session->open, 2u);
  EXPECT_EQ(session->device_bytes, kGiB);
  EXPECT_EQ(session->host_bytes, kMiB);
  EXPECT_EQ(world.ledger.FindSession(holder)->open, 1u);
  EXPECT_EQ(world.ledger.FindSession(holder)->device_bytes, 0u);
  ASSERT_TRUE(world.Release(owner, lease).ok());
  EXPECT_EQ(session->device_bytes, 0u);
}

TEST(LedgerSessionTest, ForgetsTenantsThatHaveNeitherSessionsNorLeases) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, kGiB);
  world.End(session);
  ASSERT_EQ(world.ledger.Tenants().size(), 1u);
  EXPECT_EQ(world.ledger.Tenants()[0].device_bytes, kGiB);
  world.Destroyed(lease);
  world.Observe(0, 0);
  EXPECT_TRUE(world.ledger.Tenants().empty());
}

TEST(LedgerSessionTest, ListsByIdInPages) {
  World world;
  for (int i = 0; i < 5; ++i) world.Lend(world.Open(), kGiB);
  std::vector<LeaseId> ids;
  for (LeaseId after;;) {
    const auto page = world.ledger.Leases(after, 2);
    if (page.empty()) break;
    for (const Lease* lease : page) ids.push_back(lease->id);
    after = ids.back();
  }
  EXPECT_EQ(ids.size(), 5u);
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  EXPECT_EQ(world.ledger.Sessions({}, 3).size(), 3u);
  EXPECT_EQ(world.ledger.Sessions(world.ledger.Sessions({}, 3).back()->id, 9).size(), 2u);
}

}  // namespace
}  // namespace gpulease::ledger
