// SPDX-License-Identifier: Apache-2.0
//
// Suspended leases: they shrink to nothing, and grow back.
#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Bytes kSize = 10 * kGiB;

struct SuspendWorld : World {
  SuspendWorld() : SuspendWorld(OneGpu()) {}
  explicit SuspendWorld(Options options) : World(std::move(options)) {
    owner = Open(1000);
    lease = Lend(owner, Named(kSize, "weights", 0666));
    all = static_cast<std::uint32_t>(At().chunks.size());
  }
  const Lease& At() const { return *ledger.FindLease(lease); }
  Status Suspend(std::uint32_t have) { return ledger.Suspend(owner, lease, have, now, log); }
  Result<Resized> Resume(std::uint32_t have, Duration wait = {}) {
    return ledger.Resume({owner, lease, have, wait}, now, log);
  }
  Result<std::uint32_t> Refresh(SessionId session, std::uint32_t have) {
    return ledger.Refresh(session, lease, have, now, log);
  }
  // Suspended, and its memory free.
  void MustSuspend() {
    ASSERT_TRUE(Suspend(all).ok());
    ASSERT_TRUE(Suspend(0).ok());
    ASSERT_EQ(At().residence, Residence::kSuspended);
    Destroyed(LastCut());
    Observe(0, Live(0));
  }
  // With memory again, and not filled.
  void MustResume() {
    const Resized answer = Resume(0).value();
    ASSERT_EQ(answer.state, State::kMaking);
    ASSERT_TRUE(Make(answer.group));
    ASSERT_EQ(At().residence, Residence::kResuming);
    all = static_cast<std::uint32_t>(At().chunks.size());
  }
  // Another one that has it open, and takes part.
  SessionId Partner(std::uint32_t uid = 1001) {
    const SessionId session = Open(uid);
    Hold(session, lease);
    EXPECT_TRUE(ledger.TakePart(session, lease).ok());
    return session;
  }
  LeaseId LastCut() const { return Seen(Effect::Kind::kCut).back().other; }

  SessionId owner;
  LeaseId lease;
  std::uint32_t all = 0;
};

TEST(LedgerSuspendTest, AllItsMemoryGoesAndComesBackAndTheLeaseStays) {
  SuspendWorld world;
  ASSERT_TRUE(world.Suspend(world.all).ok());
  EXPECT_EQ(world.At().residence, Residence::kSuspending);
  EXPECT_EQ(world.At().size, kSize) << "until its owner has let go";
  ASSERT_TRUE(world.Suspend(0).ok());
  EXPECT_EQ(world.At().residence, Residence::kSuspended);
  EXPECT_EQ(world.At().size, 0u);
  EXPECT_EQ(world.At().suspended, kSize);
  EXPECT_EQ(world.At().requested, kSize);
  EXPECT_EQ(world.Use().releasing, kSize);
  EXPECT_EQ(world.ledger.FindSession(world.owner)->device_bytes, 0u);
  world.Destroyed(world.LastCut());
  world.Observe(0, 0);
  EXPECT_EQ(world.Use().free, world.Use().total);
  EXPECT_EQ(world.ledger.chunk_count(), 0u);
  EXPECT_TRUE(world.Suspend(0).ok()) << "again";
  const Resized grows = world.Resume(0).value();
  EXPECT_EQ(world.Resume(0).value().growth, grows.growth) << "asked again";
  EXPECT_EQ(world.Use().offered, kSize);
  ASSERT_TRUE(world.Make(grows.group));
  EXPECT_EQ(world.At().residence, Residence::kResuming);
  EXPECT_EQ(world.At().size, kSize);
  ASSERT_TRUE(world.Resume(static_cast<std::uint32_t>(world.At().chunks.size())).ok());
  EXPECT_EQ(world.At().residence, Residence::kResident);
  EXPECT_EQ(world.At().suspended, 0u);
  EXPECT_EQ(world.At().requested, kSize);
  EXPECT_EQ(world.At().name, "weights");
  world.Return(world.owner, world.lease);
  EXPECT_TRUE(world.Gone(world.lease));
}

TEST(LedgerSuspendTest, TheOwnerIsTheLastToLetGoAndTheFirstToHaveIt) {
  SuspendWorld world;
  const SessionId other = world.Partner();
  ASSERT_TRUE(world.Suspend(world.all).ok());
  EXPECT_THAT(world.Told(EventType::kSuspending, world.lease), ElementsAre(other));
  EXPECT_EQ(*world.Refresh(other, world.all), 0u) << "is to let go";
  ASSERT_TRUE(world.Suspend(0).ok());
  EXPECT_EQ(world.At().residence, Residence::kSuspending) << "the other has it still";
  EXPECT_EQ(*world.Refresh(other, 0), 0u);
  EXPECT_EQ(world.At().residence, Residence::kSuspended);
  world.MustResume();
  EXPECT_EQ(*world.Refresh(other, 0), 0u) << "nothing before it is filled";
  EXPECT_THAT(world.Told(EventType::kResumed, world.lease), IsEmpty());
  ExpectRefused(world.OpenLease(world.Open(1002), world.lease), Code::kFailedPrecondition,
                Reason::kSuspended);
  ASSERT_TRUE(world.Resume(world.all).ok());
  EXPECT_THAT(world.Told(EventType::kResumed, world.lease), ElementsAre(other));
  EXPECT_EQ(*world.Refresh(other, 0), world.all);
  ASSERT_TRUE(world.Suspend(world.all).ok()) << "it takes part for as long as it has it open";
}

TEST(LedgerSuspendTest, WhoTakesNoPartIsNamedAndNothingChanges) {
  SuspendWorld world;
  const SessionId partner = world.Partner();
  const SessionId stranger = world.Open(1002);
  world.Hold(stranger, world.lease, Access::kReadOnly);
  const Status refused = world.Suspend(world.all);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().reason, Reason::kNotPartaking);
  EXPECT_EQ(refused.error().code, Code::kFailedPrecondition);
  EXPECT_THAT(refused.error().message, HasSubstr("process 1003"));
  ASSERT_EQ(refused.error().blockers.size(), 1u);
  EXPECT_EQ(refused.error().blockers[0].pid, 1003);
  EXPECT_EQ(world.At().residence, Residence::kResident);
  EXPECT_THAT(world.Told(EventType::kSuspending, world.lease), IsEmpty());
  EXPECT_EQ(*world.Refresh(partner, world.all), world.all);
  ASSERT_TRUE(world.Close(stranger, world.lease).ok());
  EXPECT_TRUE(world.Suspend(world.all).ok());
}

TEST(LedgerSuspendTest, ItIsCalledOffUntilTheChunksAreCut) {
  SuspendWorld world;
  const SessionId other = world.Partner();
  ASSERT_TRUE(world.Suspend(world.all).ok());
  ASSERT_TRUE(world.Refresh(other, 0).ok());
  ASSERT_TRUE(world.Resume(world.all).ok());
  EXPECT_EQ(world.At().residence, Residence::kResident);
  EXPECT_THAT(world.Told(EventType::kResumed, world.lease), ElementsAre(other));
  EXPECT_EQ(*world.Refresh(other, 0), world.all);
  // Also by an owner who let go already, while another has not.
  ASSERT_TRUE(world.Suspend(0).ok());
  ASSERT_TRUE(world.Resume(0).ok());
  EXPECT_EQ(world.At().residence, Residence::kSuspending) << "he is given them first";
  ASSERT_TRUE(world.Resume(world.all).ok());
  EXPECT_EQ(world.At().residence, Residence::kResident);
  EXPECT_THAT(world.Seen(Effect::Kind::kCut), IsEmpty());
}

TEST(LedgerSuspendTest, AResumeWaitsInTheQueueAndIsGivenUp) {
  SuspendWorld world;
  world.MustSuspend();
  const SessionId other = world.Open(1001);
  const LeaseId filler = world.Lend(other, 95 * kGiB);
  ExpectRefused(world.Resume(0), Code::kUnavailable, Reason::kMemoryShort);
  const Resized waits = world.Resume(0, hours(1)).value();
  EXPECT_EQ(waits.state, State::kQueued);
  ASSERT_TRUE(world.Suspend(0).ok()) << "which gives it up";
  EXPECT_EQ(world.Failure(waits.group)->code, Code::kCancelled);
  EXPECT_FALSE(world.At().growth);
  const Resized again = world.Resume(0, hours(1)).value();
  world.Return(other, filler);
  EXPECT_TRUE(world.Make(again.group));
  EXPECT_EQ(world.At().residence, Residence::kResuming);
  // What is not filled goes as it came.
  ASSERT_TRUE(world.Suspend(0).ok());
  EXPECT_EQ(world.At().residence, Residence::kSuspended);
  EXPECT_EQ(world.At().suspended, kSize);
}

TEST(LedgerSuspendTest, TheTenantsLimitHoldsForAResume) {
  World world;
  const SessionId owner = world.Open(world.Client(1000, 12 * kGiB));
  const LeaseId lease = world.Lend(owner, kSize);
  const auto all = static_cast<std::uint32_t>(world.ledger.FindLease(lease)->chunks.size());
  ASSERT_TRUE(world.ledger.Suspend(owner, lease, all, world.now, world.log).ok());
  ASSERT_TRUE(world.ledger.Suspend(owner, lease, 0, world.now, world.log).ok());
  world.Destroyed(world.Seen(Effect::Kind::kCut).back().other);
  world.Observe(0, 0);
  const LeaseId second = world.Lend(owner, 11 * kGiB);
  ExpectRefused(world.ledger.Resume({owner, lease, 0}, world.now, world.log),
                Code::kResourceExhausted, Reason::kTenantLimit);
  world.Return(owner, second);
  EXPECT_TRUE(world.ledger.Resume({owner, lease, 0}, world.now, world.log).ok());
}

TEST(LedgerSuspendTest, AnOwnerWhoDiesBeforeTheCutLeavesTheOthersWhatTheyHad) {
  SuspendWorld world;
  const SessionId lets_go = world.Partner(1001);
  const SessionId has_it = world.Partner(1002);
  ASSERT_TRUE(world.Suspend(world.all).ok());
  ASSERT_TRUE(world.Refresh(lets_go, 0).ok());
  world.End(world.owner);
  EXPECT_EQ(world.StateOf(world.lease), State::kReleased);
  EXPECT_EQ(world.At().residence, Residence::kResident);
  EXPECT_THAT(world.Told(EventType::kResumed, world.lease), ElementsAre(lets_go, has_it));
  EXPECT_EQ(*world.Refresh(lets_go, 0), world.all);
}

TEST(LedgerSuspendTest, AnOwnerWhoDiesAfterTheCutLeavesNothingAndOthersAreTold) {
  for (const bool resuming : {false, true}) {
    SuspendWorld world;
    const SessionId other = world.Partner();
    ASSERT_TRUE(world.Suspend(world.all).ok());
    ASSERT_TRUE(world.Refresh(other, 0).ok());
    world.MustSuspend();
    if (resuming) world.MustResume();
    world.End(world.owner);
    EXPECT_EQ(world.StateOf(world.lease), State::kReleased);
    EXPECT_EQ(world.At().size, 0u) << "what was not filled is nobody's";
    if (resuming) world.Destroyed(world.LastCut());
    world.Observe(0, 0);
    EXPECT_EQ(world.Use().free, world.Use().total);
    const Result<std::uint32_t> told = world.Refresh(other, 0);
    ExpectRefused(told, Code::kFailedPrecondition, Reason::kSuspended);
    EXPECT_THAT(told.error().message, HasSubstr("its owner ended while it was suspended"));
    ASSERT_TRUE(world.Close(other, world.lease).ok());
    world.Destroyed(world.lease);
    EXPECT_TRUE(world.Gone(world.lease)) << "nothing is awaited of it";
  }
}

TEST(LedgerSuspendTest, AHolderWhoDiesHasLetGo) {
  for (const bool process_lives : {false, true}) {
    SuspendWorld world;
    const SessionId other = world.Partner();
    ASSERT_TRUE(world.Suspend(0).ok());
    EXPECT_EQ(world.At().residence, Residence::kSuspending);
    world.End(other, process_lives);
    EXPECT_EQ(world.At().residence, Residence::kSuspended);
    const Lease& cut = *world.ledger.FindLease(world.LastCut());
    EXPECT_EQ(cut.quarantined, process_lives) << "the living process may map it";
    world.MustResume();
    ASSERT_TRUE(world.Resume(world.all).ok());
    ASSERT_TRUE(world.Release(world.owner, world.lease).ok());
    EXPECT_FALSE(world.ledger.FindLease(world.lease)->quarantined) << "it never had these";
  }
}

TEST(LedgerSuspendTest, AnOwnerWhoClosesItCallsItOffOrLosesIt) {
  SuspendWorld world;
  ASSERT_TRUE(world.Suspend(world.all).ok());
  ASSERT_TRUE(world.Close(world.owner, world.lease).ok());
  EXPECT_EQ(world.At().residence, Residence::kResident);
  ASSERT_TRUE(world.OpenLease(world.owner, world.lease).ok());
  world.MustSuspend();
  const Resized grows = world.Resume(0).value();
  ASSERT_TRUE(world.Close(world.owner, world.lease).ok());
  ASSERT_TRUE(world.Make(grows.group));
  EXPECT_EQ(world.At().residence, Residence::kSuspended) << "nobody is there to fill it";
  ASSERT_TRUE(world.Release(world.owner, world.lease).ok());
  world.Destroyed(world.lease);
  EXPECT_TRUE(world.Gone(world.lease));
}

TEST(LedgerSuspendTest, WhatMakesNoSenseIsRefused) {
  SuspendWorld world;
  const auto suspend = [&](SessionId session, LeaseId lease, std::uint32_t have) {
    const Status status = world.ledger.Suspend(session, lease, have, world.now, world.log);
    return status.ok() ? Result<int>(0) : Result<int>(status.error());
  };
  const SessionId other = world.Partner();
  ExpectRefused(suspend(other, world.lease, 0), Code::kNotFound, Reason::kNotOpenable);
  ExpectRefused(suspend(SessionId{1}, world.lease, 0), Code::kFailedPrecondition,
                Reason::kSessionEnded);
  ExpectRefused(suspend(world.owner, world.lease, world.all + 1), Code::kInvalidArgument,
                Reason::kBadField);
  const LeaseId host = world.Lend(world.owner, HostSpec(kMiB));
  ExpectRefused(suspend(world.owner, host, 0), Code::kFailedPrecondition, Reason::kUnsupported);
  AllocationSpec spec = Named(kGiB, "lasting");
  spec.linger = seconds(10);
  const LeaseId lasting = world.Lend(world.owner, spec);
  ExpectRefused(suspend(world.owner, lasting, 0), Code::kFailedPrecondition, Reason::kUnsupported);
  AllocationSpec open_by_handle = Spec(kGiB);
  open_by_handle.ipc = true;
  const LeaseId shared = world.Lend(world.owner, open_by_handle);
  ExpectRefused(suspend(world.owner, shared, 0), Code::kFailedPrecondition, Reason::kUnsupported);
  AllocationSpec elastic = Spec(kGiB);
  elastic.reserve = 8 * kGiB;
  const LeaseId grows = world.Lend(world.owner, elastic);
  const Resized growth =
      world.ledger.Resize({world.owner, grows, 2 * kGiB, 1, {}}, world.now, world.log).value();
  ExpectRefused(suspend(world.owner, grows, 1), Code::kFailedPrecondition, Reason::kUnspecified);
  ASSERT_TRUE(world.Make(growth.group));
  ASSERT_TRUE(suspend(world.owner, grows, 0).ok()) << "an elastic lease is suspended as any";
  ExpectRefused(world.ledger.Resize({world.owner, grows, kGiB, 0, {}}, world.now, world.log),
                Code::kFailedPrecondition, Reason::kSuspended);
  const Status sealed = world.ledger.Seal(world.owner, grows, "", nullptr, world.now, world.log);
  ASSERT_FALSE(sealed.ok());
  EXPECT_EQ(sealed.error().reason, Reason::kSuspended);
  ExpectRefused(world.Resume(0, hours(25)), Code::kInvalidArgument, Reason::kBadField);
  EXPECT_TRUE(world.Resume(world.all).ok()) << "what is there stays so";
  ASSERT_TRUE(world.Revoke(world.lease).ok());
  ExpectRefused(suspend(world.owner, world.lease, 0), Code::kFailedPrecondition,
                Reason::kUnspecified);
}

TEST(LedgerSuspendTest, ASealedOneIsSuspendedToo) {
  SuspendWorld world;
  ASSERT_TRUE(
      world.ledger.Seal(world.owner, world.lease, "v1", nullptr, world.now, world.log).ok());
  world.MustSuspend();
  world.MustResume();
  ASSERT_TRUE(world.Resume(world.all).ok());
  EXPECT_TRUE(world.At().sealed);
  EXPECT_EQ(world.At().content_tag, "v1");
}

TEST(LedgerSuspendTest, ALostGpuTakesWhatIsSuspendedWithIt) {
  SuspendWorld world;
  world.MustSuspend();
  world.ledger.LosePool(0, "fell off the bus", world.now, world.log);
  EXPECT_TRUE(world.Gone(world.lease));
  EXPECT_THAT(world.Told(EventType::kDeviceLost, world.lease), ElementsAre(world.owner));
}

TEST(LedgerSuspendTest, EachStepOutlivesTheLedger) {
  enum Step { kSuspending, kSuspended, kResuming, kResident };
  for (const Step step : {kSuspending, kSuspended, kResuming, kResident}) {
    for (const bool owner_lives : {true, false}) {
      SuspendWorld world;
      const SessionId other = world.Partner();
      ASSERT_TRUE(world.Suspend(world.all).ok());
      ASSERT_TRUE(world.Refresh(other, 0).ok());
      if (step >= kSuspended) world.MustSuspend();
      if (step >= kResuming) world.MustResume();
      if (step >= kResident) ASSERT_TRUE(world.Resume(world.all).ok());
      const RestoredLease kept = *world.ledger.Keepable(world.lease);

      World next;
      if (owner_lives)
        ASSERT_TRUE(next.ledger.RestoreSession(world.owner, next.Client(1000), next.now).ok());
      ASSERT_TRUE(next.ledger.RestoreSession(other, next.Client(1001), next.now).ok());
      ASSERT_TRUE(next.ledger.RestoreLease(kept, next.now, next.log).ok());
      EXPECT_EQ(next.ledger.CheckInvariants(), "");
      const Lease& lease = *next.ledger.FindLease(world.lease);
      if (owner_lives) {
        EXPECT_EQ(static_cast<int>(lease.residence), static_cast<int>(world.At().residence));
        EXPECT_EQ(lease.suspended, world.At().suspended);
        EXPECT_EQ(lease.size, world.At().size);
        EXPECT_EQ(lease.requested, kSize);
        EXPECT_TRUE(lease.holders[0].takes_part || lease.holders[1].takes_part);
        continue;
      }
      EXPECT_EQ(lease.state, State::kReleased);
      const bool there = step == kSuspending || step == kResident;
      EXPECT_EQ(lease.residence == Residence::kResident, there);
      EXPECT_EQ(lease.size, there ? kSize : 0);
    }
  }
}

TEST(LedgerSuspendTest, ASenselessRecordIsNotTakenUp) {
  SuspendWorld world;
  world.MustSuspend();
  const RestoredLease kept = *world.ledger.Keepable(world.lease);
  const auto refused = [&](auto change) {
    RestoredLease broken = kept;
    change(broken.lease);
    World next;
    EXPECT_TRUE(next.ledger.RestoreSession(world.owner, next.Client(1000), next.now).ok());
    return !next.ledger.RestoreLease(broken, next.now, next.log).ok();
  };
  EXPECT_FALSE(refused([](Lease&) {}));
  EXPECT_TRUE(refused([](Lease& lease) { lease.suspended = 0; }));
  EXPECT_TRUE(refused([](Lease& lease) { lease.suspended -= 1; }));
  EXPECT_TRUE(refused([](Lease& lease) { lease.residence = Residence::kResident; }));
  EXPECT_TRUE(refused([](Lease& lease) { lease.residence = Residence::kResuming; }));
  EXPECT_TRUE(refused([](Lease& lease) { lease.chunks = {kSize}; }));
  EXPECT_TRUE(refused([](Lease& lease) { lease.linger = seconds(1); }));
}

TEST(LedgerSuspendTest, SetAsideASuspendedOneIsNothing) {
  SuspendWorld world;
  world.MustSuspend();
  World next;
  ASSERT_TRUE(next.ledger.SetAside(*world.ledger.Keepable(world.lease), next.now, next.log).ok());
  EXPECT_EQ(next.ledger.lease_count(), 0u);
}

}  // namespace
}  // namespace gpulease::ledger
