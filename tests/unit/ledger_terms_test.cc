// SPDX-License-Identifier: Apache-2.0
#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

// The terms that a World begins with.
Terms TermsOf(const World& world) {
  Terms terms;
  for (PoolIndex pool = 0; pool < world.ledger.pool_count(); ++pool) {
    const PoolSpec& spec = world.ledger.Pool(pool);
    terms.pools.push_back({spec.headroom, spec.largest_chunk});
  }
  terms.is_administrator = [](const UserSpec& user) { return user.uid == 0; };
  return terms;
}

TEST(LedgerTermsTest, AHigherTenantLimitGrantsWhatWaitedForIt) {
  World world;
  const SessionId session = world.Open(world.Client(1000, 10 * kGiB));
  world.Lend(session, 8 * kGiB);
  const LeaseId waiting = world.Queue(session, 4 * kGiB);
  Terms terms = TermsOf(world);
  terms.tenants = {{"t1000", 12 * kGiB, 0}, {"nobody", kGiB, kGiB}};
  world.ledger.SetTerms(terms, world.now, world.log);
  EXPECT_EQ(world.StateOf(waiting), State::kMaking);
  ASSERT_EQ(world.ledger.Tenants().size(), 1u);
  EXPECT_EQ(world.ledger.Tenants()[0].spec.device_limit, 12 * kGiB);
}

TEST(LedgerTermsTest, ALowerLimitTakesNothingAwayAndFailsWhatCouldNeverBeGranted) {
  World world;
  const SessionId session = world.Open(world.Client(1000, 50 * kGiB));
  const LeaseId held = world.Lend(session, 40 * kGiB);
  const Allocated hopeless = world.Ask(session, 20 * kGiB, hours(1)).value();
  const Allocated modest = world.Ask(session, 5 * kGiB, hours(1)).value();
  Terms terms = TermsOf(world);
  terms.tenants = {{"t1000", 10 * kGiB, 0}};
  world.ledger.SetTerms(terms, world.now, world.log);
  EXPECT_EQ(world.StateOf(held), State::kLeased);
  ASSERT_NE(world.Failure(hopeless.group), nullptr);
  EXPECT_EQ(world.Failure(hopeless.group)->reason, Reason::kTooLarge);
  EXPECT_EQ(world.StateOf(modest.leases[0]), State::kQueued);
  world.Return(session, held);
  EXPECT_EQ(world.StateOf(modest.leases[0]), State::kMaking);
}

TEST(LedgerTermsTest, HeadroomKeepsMemoryFromNewGrants) {
  World world;
  const SessionId session = world.Open();
  Terms terms = TermsOf(world);
  terms.pools[0].headroom = 90 * kGiB;
  world.ledger.SetTerms(terms, world.now, world.log);
  ExpectRefused(world.Ask(session, 11 * kGiB), Code::kInvalidArgument, Reason::kTooLarge);
  world.Lend(session, 10 * kGiB);
  terms.pools[0].headroom = 0;
  world.ledger.SetTerms(terms, world.now, world.log);
  world.Lend(session, 11 * kGiB);
}

TEST(LedgerTermsTest, ChunksOfNewLeasesAreAsLargeAsTheNewTermsSay) {
  World world;
  const SessionId session = world.Open();
  const LeaseId before = world.Lend(session, kGiB);
  Terms terms = TermsOf(world);
  terms.pools[0].largest_chunk = 256 * kMiB;
  world.ledger.SetTerms(terms, world.now, world.log);
  const LeaseId after = world.Lend(session, kGiB);
  EXPECT_EQ(world.ledger.FindLease(before)->chunks.size(), 1u);
  EXPECT_EQ(world.ledger.FindLease(after)->chunks.size(), 4u);
}

TEST(LedgerTermsTest, LimitsOfAUserHoldForWhatComes) {
  World world;
  const SessionId session = world.Open();
  world.Lend(session, kGiB);
  world.Lend(session, kGiB);
  Terms terms = TermsOf(world);
  terms.limits.leases_per_user = 1;
  terms.limits.sessions_per_user = 1;
  world.ledger.SetTerms(terms, world.now, world.log);
  ExpectRefused(world.Ask(session, kGiB), Code::kResourceExhausted, Reason::kSessionLimit);
  ExpectRefused(world.ledger.OpenSession(world.Client(1000), world.now, world.log),
                Code::kResourceExhausted, Reason::kSessionLimit);
  EXPECT_EQ(world.ledger.lease_count(), 2u);
}

TEST(LedgerTermsTest, WhatIsReleasingIsUnconfirmedAfterTheNewBound) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, kGiB);
  ASSERT_TRUE(world.Release(session, lease).ok());
  world.Destroyed(lease);
  Terms terms = TermsOf(world);
  terms.limits.release_bound = seconds(60);
  world.ledger.SetTerms(terms, world.now, world.log);
  world.Pass(seconds(30));
  EXPECT_EQ(world.StateOf(lease), State::kReleasing);
  world.Pass(seconds(30));
  EXPECT_EQ(world.StateOf(lease), State::kUnconfirmed);
}

TEST(LedgerTermsTest, WhoIsNoAdministratorAnyMoreOpensNothingOfOthers) {
  World world;
  const SessionId owner = world.Open(1000);
  SessionSpec spec = world.Client(1001);
  spec.user.administrator = true;
  const SessionId session = world.Open(spec);
  const LeaseId lease = world.Lend(owner, kGiB);
  const Terms terms = TermsOf(world);
  world.ledger.SetTerms(terms, world.now, world.log);
  ExpectRefused(world.OpenLease(session, lease), Code::kPermissionDenied, Reason::kNotOpenable);
}

}  // namespace
}  // namespace gpulease::ledger
