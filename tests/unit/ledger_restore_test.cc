// SPDX-License-Identifier: Apache-2.0
//
// A ledger's leases, had again by another.
#include <algorithm>
#include <random>

#include "tests/unit/ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::seconds;

Options Noting(Options options) {
  options.notes_changes = true;
  return options;
}

// The sessions but `ended`, and all that is Keepable, in another ledger.
std::unique_ptr<World> Successor(const World& world, const std::vector<SessionId>& ended = {}) {
  auto next = std::make_unique<World>(OneGpu());
  next->now = world.now;
  for (const Session* session : world.ledger.Sessions({}, ~std::size_t{0})) {
    if (std::count(ended.begin(), ended.end(), session->id) > 0) continue;
    EXPECT_TRUE(next->ledger.RestoreSession(session->id, session->spec, next->now).ok());
  }
  for (const Lease* lease : world.ledger.Leases({}, ~std::size_t{0})) {
    std::optional<RestoredLease> kept = world.ledger.Keepable(lease->id);
    if (!kept) continue;
    const Status status = next->ledger.RestoreLease(*std::move(kept), next->now, next->log);
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  EXPECT_EQ(next->ledger.CheckInvariants(), "");
  return next;
}

TEST(LedgerRestoreTest, EverybodyHasWhatHeHad) {
  World world(Noting(OneGpu()));
  const SessionId alice = world.Open(1000), bob = world.Open(1001);
  const LeaseId shared = world.Lend(alice, Named(3 * kGiB, "shared", 0666));
  const LeaseId offered = world.Offer(alice, Spec(kGiB));
  const LeaseId host = world.Lend(bob, HostSpec(kGiB));
  world.Hold(bob, shared, Access::kReadOnly);
  const auto next = Successor(world);
  for (const LeaseId id : {shared, offered, host}) {
    const Lease& before = *world.ledger.FindLease(id);
    const Lease& after = *next->ledger.FindLease(id);
    EXPECT_EQ(after.state, before.state);
    EXPECT_EQ(after.size, before.size);
    EXPECT_EQ(after.owner, before.owner);
    EXPECT_EQ(after.holders.size(), before.holders.size());
  }
  EXPECT_EQ(next->Use().leased, world.Use().leased);
  EXPECT_EQ(next->Use(1).leased, world.Use(1).leased);
  EXPECT_EQ(next->ledger.FindByName(1000, "shared")->id, shared);
  EXPECT_TRUE(next->Close(bob, shared).ok());
  EXPECT_TRUE(next->Release(alice, shared).ok());
  EXPECT_TRUE(next->Destroying(shared));
}

TEST(LedgerRestoreTest, WhatBelongedToTheDeadIsDestroyedAndWhatOthersHoldIsNot) {
  World world;
  const SessionId alice = world.Open(1000), bob = world.Open(1001);
  const LeaseId shared = world.Lend(alice, Named(kGiB, "shared", 0666));
  const LeaseId hers = world.Lend(alice, kGiB);
  world.Hold(bob, shared);
  const auto next = Successor(world, {alice});
  EXPECT_TRUE(next->Destroying(hers));
  EXPECT_EQ(next->StateOf(shared), State::kReleased);
  EXPECT_EQ(next->ledger.FindByName(1000, "shared"), nullptr);
  EXPECT_TRUE(next->Close(bob, shared).ok());
  EXPECT_TRUE(next->Destroying(shared));
}

TEST(LedgerRestoreTest, ARetryGetsTheGroupInItsOrder) {
  World world;
  const SessionId alice = world.Open(1000);
  const Allocated group =
      world.Ask(alice, {Spec(kGiB), Spec(2 * kGiB), Spec(3 * kGiB)}, {}, "again").value();
  EXPECT_TRUE(world.Make(group.group));
  const auto next = Successor(world);
  const Allocated retried =
      next->Ask(alice, {Spec(kGiB), Spec(2 * kGiB), Spec(3 * kGiB)}, {}, "again").value();
  EXPECT_TRUE(retried.retry);
  EXPECT_EQ(retried.leases, group.leases);
}

TEST(LedgerRestoreTest, HostMemoryThatIsReleasingIsWatchedOn) {
  World world;
  const SessionId alice = world.Open(1000);
  const LeaseId host = world.Lend(alice, HostSpec(kGiB));
  const LeaseId device = world.Lend(alice, kGiB);
  EXPECT_TRUE(world.Release(alice, host).ok());
  EXPECT_TRUE(world.Release(alice, device).ok());
  const auto next = Successor(world);
  EXPECT_TRUE(next->Gone(device)) << "its descriptors are closed: the driver shows it";
  EXPECT_EQ(next->StateOf(host), State::kReleasing);
  EXPECT_EQ(next->ledger.LeasesToObserve(1), std::vector<LeaseId>{host});
  next->ledger.ObserveLease(host, false, next->now, next->log);
  EXPECT_TRUE(next->Gone(host));
}

TEST(LedgerRestoreTest, WhatIsSetAsideIsQuarantinedUntilAnAdministratorEndsIt) {
  World world;
  const SessionId alice = world.Open(1000);
  const LeaseId lease = world.Lend(alice, Named(kGiB, "weights"));
  World next(OneGpu());
  next.now = world.now;
  ASSERT_TRUE(next.ledger.SetAside(*world.ledger.Keepable(lease), next.now, next.log).ok());
  EXPECT_EQ(next.Use().quarantined, kGiB);
  EXPECT_EQ(next.Use().free, 99 * kGiB);
  EXPECT_TRUE(next.ledger.Keepable(lease).has_value());
  next.Observe(0, kGiB);
  next.Pass(seconds(60));
  EXPECT_EQ(next.Use().quarantined, kGiB);
  EXPECT_TRUE(next.Revoke(lease, true).ok());
  EXPECT_FALSE(next.ledger.Keepable(lease).has_value());
  next.Observe(0, 0);
  EXPECT_TRUE(next.Gone(lease));
}

TEST(LedgerRestoreTest, ANameThatAnotherHasByNowIsLost) {
  World world;
  const SessionId alice = world.Open(1000);
  const LeaseId lease = world.Lend(alice, Named(kGiB, "weights"));
  RestoredLease former = *world.ledger.Keepable(lease);
  former.lease.id.value ^= 1;
  former.lease.group.value ^= 1;
  ASSERT_TRUE(world.ledger.RestoreLease(former, world.now, world.log).ok());
  EXPECT_EQ(world.ledger.FindByName({1000}, "weights")->id, lease);
  EXPECT_EQ(world.ledger.FindLease(former.lease.id)->name, "");
  EXPECT_TRUE(world.Release(alice, former.lease.id).ok());
  EXPECT_EQ(world.ledger.FindByName({1000}, "weights")->id, lease);
}

TEST(LedgerRestoreTest, AContainersLeaseIsStillTheContainers) {
  World before;
  SessionSpec spec = before.Client(7);
  spec.user.realm = "/a.scope";
  const SessionId owner = before.Open(spec);
  const LeaseId lease = before.Lend(owner, Named(kGiB, "weights"));
  RestoredLease kept = *before.ledger.Keepable(lease);
  World after;
  ASSERT_TRUE(after.ledger.RestoreSession(owner, spec, after.now).ok());
  ASSERT_TRUE(after.ledger.RestoreLease(std::move(kept), after.now, after.log).ok());
  EXPECT_EQ(after.ledger.FindByName({7, "/a.scope"}, "weights")->id, lease);
  EXPECT_FALSE(after.OpenLease(after.Open(7), lease, Access::kReadOnly).ok());
}

TEST(LedgerRestoreTest, NonsenseIsRefusedAndChangesNothing) {
  World world;
  const SessionId alice = world.Open(1000);
  const LeaseId lease = world.Lend(alice, Named(kGiB, "weights"));
  const RestoredLease good = *world.ledger.Keepable(lease);
  std::vector<std::pair<std::string, RestoredLease>> wrong;
  const auto with = [&](const std::string& what, auto change) {
    RestoredLease bad = good;
    change(bad.lease);
    wrong.emplace_back(what, bad);
  };
  with("known already", [](Lease&) {});
  with("its id", [](Lease& bad) { bad.id = LeaseId{0}; });
  with("its id", [](Lease& bad) { bad.id = LeaseId{1ull << 60}; });
  with("its pool", [](Lease& bad) { bad.id.value ^= 1, bad.pool = 7; });
  with("its pool", [](Lease& bad) { bad.id.value ^= 1, bad.pool = 1; });
  with("not made", [](Lease& bad) { bad.id.value ^= 1, bad.state = State::kQueued; });
  with("no sensible size", [](Lease& bad) { bad.id.value ^= 1, bad.chunks = {~0ull, ~0ull}; });
  with("no sensible size", [](Lease& bad) { bad.id.value ^= 1, bad.chunks = {0}; });
  with("do not fit", [](Lease& bad) { bad.id.value ^= 1, bad.chunks = {4096}; });
  with("do not fit", [](Lease& bad) { bad.id.value ^= 1, bad.chunks = {}; });
  with("holds it twice", [](Lease& bad) {
    bad.id.value ^= 1;
    bad.name.clear();
    bad.holders.push_back(bad.holders.front());
  });
  with("another one's", [](Lease& bad) { bad.id.value ^= 1, bad.uid = 7; });
  const Bytes free = world.Use().free;
  for (const auto& [what, bad] : wrong) {
    const Status status = world.ledger.RestoreLease(bad, world.now, world.log);
    ASSERT_FALSE(status.ok()) << what;
    EXPECT_THAT(status.error().message, ::testing::HasSubstr(what));
    EXPECT_EQ(world.Use().free, free);
  }
}

TEST(LedgerRestoreTest, ChangesNameEveryLeaseWhoseRecordChanged) {
  World world(Noting(OneGpu()));
  const SessionId alice = world.Open(1000), bob = world.Open(1001);
  const LeaseId lease = world.Offer(alice, Named(kGiB, "weights", 0666));
  EXPECT_EQ(world.ledger.TakeChanges(), std::vector<LeaseId>{lease});
  EXPECT_TRUE(world.ledger.TakeChanges().empty());
  const auto changed = [&] { return world.ledger.TakeChanges() == std::vector<LeaseId>{lease}; };
  world.ledger.Take(alice, lease, world.now, world.log);
  EXPECT_TRUE(changed());
  world.Hold(bob, lease);
  EXPECT_TRUE(changed());
  EXPECT_TRUE(world.Close(bob, lease).ok());
  EXPECT_TRUE(changed());
  EXPECT_TRUE(world.Release(alice, lease).ok());
  EXPECT_TRUE(changed());
  world.Destroyed(lease);
  world.Observe(0, 0);
  EXPECT_TRUE(changed());
}

// Whatever happened before, a successor adds up to the same.
TEST(LedgerRestoreTest, AnyLedgerHasASuccessor) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    World world;
    std::vector<SessionId> sessions;
    std::vector<LeaseId> leases;
    for (int step = 0; step < 200; ++step) {
      const auto pick = [&](auto& from) { return from[random() % from.size()]; };
      switch (random() % 9) {
        case 0:
          sessions.push_back(world.Open(1000 + random() % 3));
          break;
        case 1:
        case 2:
          if (sessions.empty()) break;
          if (auto asked =
                  world.Ask(pick(sessions),
                            {random() % 2 != 0 ? Spec((1 + random() % 9) * kGiB) : HostSpec(kGiB)});
              asked.ok()) {
            if (asked->state == State::kMaking && random() % 4 != 0) world.Make(asked->group);
            leases.insert(leases.end(), asked->leases.begin(), asked->leases.end());
          }
          break;
        case 3:
          if (!leases.empty() && !sessions.empty())
            static_cast<void>(world.OpenLease(pick(sessions), pick(leases)).ok());
          break;
        case 4:
          if (!leases.empty() && !sessions.empty())
            world.ledger.Take(pick(sessions), pick(leases), world.now, world.log);
          break;
        case 5:
          if (!leases.empty() && !sessions.empty())
            static_cast<void>(world.Close(pick(sessions), pick(leases)).ok());
          break;
        case 6:
          if (!leases.empty())
            static_cast<void>(world.Revoke(pick(leases), random() % 2 != 0).ok());
          break;
        case 7:
          if (!leases.empty()) world.Destroyed(pick(leases));
          break;
        default:
          if (!sessions.empty() && random() % 4 == 0) {
            const SessionId over = pick(sessions);
            std::erase(sessions, over);
            world.End(over, random() % 2 != 0);
          }
      }
    }
    const auto next = Successor(world);
    EXPECT_EQ(next->Use().leased, world.Use().leased) << "seed " << seed;
    EXPECT_EQ(next->Use(1).leased, world.Use(1).leased) << "seed " << seed;
    std::vector<SessionId> half(sessions.begin(), sessions.begin() + sessions.size() / 2);
    Successor(world, half);
  }
}

}  // namespace
}  // namespace gpulease::ledger
