// SPDX-License-Identifier: Apache-2.0
//
// Leases that are opened by a handle: one block each, which may be lost by itself.
#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::hours;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

AllocationSpec WithHandle(Bytes size, const std::string& name = "", std::uint32_t mode = 0600) {
  AllocationSpec spec = Named(size, name, mode);
  spec.ipc = true;
  return spec;
}

struct IpcWorld : World {
  explicit IpcWorld(Options options = TwoGpus()) : World(std::move(options)) {}
  const Lease& At(LeaseId lease) const { return *ledger.FindLease(lease); }
};

TEST(LedgerIpcTest, ItIsOneChunkHoweverLarge) {
  Options options = TwoGpus();
  for (PoolSpec& pool : options.pools) pool.largest_chunk = kGiB;
  options.limits.chunks = 3;
  IpcWorld world(options);
  const SessionId session = world.Open();
  const LeaseId large = world.Lend(session, WithHandle(5 * kGiB));
  EXPECT_THAT(world.At(large).chunks, ElementsAre(5 * kGiB));
  EXPECT_TRUE(world.At(large).ipc);
  EXPECT_EQ(world.ledger.chunk_count(), 1u);
  ExpectRefused(world.Ask(session, {Spec(3 * kGiB)}), Code::kResourceExhausted,
                Reason::kDescriptorLimit);
  // One that waits is counted so, too.
  const LeaseId plain = world.Lend(session, Spec(kGiB, {1}));
  const Allocated queued = world.Ask(session, {WithHandle(10 * kGiB)}, hours(1)).value();
  ASSERT_EQ(queued.state, State::kQueued);
  world.Return(session, plain);
  world.Return(session, large);
  EXPECT_EQ(world.StateOf(queued.leases[0]), State::kMaking);
  EXPECT_EQ(world.ledger.chunk_count(), 1u);
}

TEST(LedgerIpcTest, IsForGpuMemoryThatKeepsItsSizeAndItsAlignment) {
  IpcWorld world;
  const SessionId session = world.Open();
  AllocationSpec host = HostSpec(4096);
  host.ipc = true;
  ExpectRefused(world.Ask(session, {host}), Code::kInvalidArgument, Reason::kBadField);
  AllocationSpec elastic = WithHandle(kGiB);
  elastic.reserve = 2 * kGiB;
  ExpectRefused(world.Ask(session, {elastic}), Code::kInvalidArgument, Reason::kBadField);
  AllocationSpec aligned = WithHandle(kGiB);
  aligned.alignment = 4 * kMiB;
  ExpectRefused(world.Ask(session, {aligned}), Code::kInvalidArgument, Reason::kBadField);
  aligned.alignment = 2 * kMiB;
  EXPECT_TRUE(world.Ask(session, {aligned}).ok());
}

TEST(LedgerIpcTest, ALostOneEndsForAllWhoHaveItAndNoOtherDoes) {
  IpcWorld world;
  const SessionId owner = world.Open(1000), holder = world.Open(1001);
  AllocationSpec spec = WithHandle(kGiB, "weights", 0666);
  spec.pools = {0};
  spec.linger = kForever;
  const LeaseId lost = world.Lend(owner, spec);
  world.Hold(holder, lost, Access::kReadOnly);
  const LeaseId other = world.Lend(owner, Spec(2 * kGiB, {0}));
  world.ledger.LoseLease(lost, "its host ended", world.now, world.log);
  EXPECT_THAT(world.Told(EventType::kDeviceLost, lost), UnorderedElementsAre(owner, holder));
  EXPECT_THAT(world.Told(EventType::kDeviceLost, other), IsEmpty());
  const auto told = world.Seen(Effect::Kind::kEvent);
  ASSERT_FALSE(told.empty());
  EXPECT_THAT(told.back().error->message, HasSubstr("its host ended"));
  EXPECT_EQ(told.back().error->reason, Reason::kDeviceLost);
  ASSERT_TRUE(world.Destroying(lost));
  EXPECT_EQ(world.StateOf(other), State::kLeased);
  // Who has it mapped keeps the bytes, until the driver shows them.
  EXPECT_TRUE(world.At(lost).quarantined);
  EXPECT_EQ(world.Use(0).quarantined, kGiB);
  world.Destroyed(lost);
  world.Observe(0, 3 * kGiB);
  EXPECT_EQ(world.Use(0).quarantined, kGiB);
  world.Observe(0, 2 * kGiB);
  EXPECT_TRUE(world.Gone(lost));
  EXPECT_EQ(world.ledger.LastingBytes(world.Client(1000).user), 0u);
  // The name is free.
  EXPECT_TRUE(world.Ask(owner, {Named(kGiB, "weights")}).ok());
}

TEST(LedgerIpcTest, LosingWhatIsNotMadeOrOverAlreadyChangesNothing) {
  IpcWorld world;
  const SessionId session = world.Open();
  const Allocated making = world.Ask(session, {WithHandle(kGiB)}).value();
  world.log.clear();
  world.ledger.LoseLease(making.leases[0], "gone", world.now, world.log);
  EXPECT_THAT(world.log, IsEmpty());
  EXPECT_EQ(world.StateOf(making.leases[0]), State::kMaking);
  const LeaseId over = world.Lend(session, WithHandle(kGiB));
  ASSERT_TRUE(world.Release(session, over).ok());
  world.log.clear();
  world.ledger.LoseLease(over, "gone", world.now, world.log);
  world.ledger.LoseLease(LeaseId{12345}, "gone", world.now, world.log);
  EXPECT_THAT(world.log, IsEmpty());
}

TEST(LedgerIpcTest, ALostOneThatOutlivedItsOwnerTellsNobodyAndIsGone) {
  IpcWorld world;
  const SessionId owner = world.Open();
  AllocationSpec spec = WithHandle(kGiB, "cache");
  spec.linger = hours(1);
  const LeaseId lease = world.Lend(owner, spec);
  world.End(owner);
  ASSERT_TRUE(IsOrphan(world.At(lease)));
  world.ledger.LoseLease(lease, "gone", world.now, world.log);
  EXPECT_THAT(world.Told(EventType::kDeviceLost, lease), IsEmpty());
  EXPECT_TRUE(world.Destroying(lease));
  EXPECT_EQ(world.ledger.NextDeadline(), kNever) << "its time runs no more";
}

TEST(LedgerIpcTest, AnotherLedgerHasItAgain) {
  IpcWorld world;
  const SessionSpec lives = world.Client(1000);
  const SessionId owner = world.Open(lives);
  const LeaseId lease = world.Lend(owner, WithHandle(3 * kGiB));
  IpcWorld next;
  next.now = world.now;
  ASSERT_TRUE(next.ledger.RestoreSession(owner, lives, next.now).ok());
  RestoredLease kept = *world.ledger.Keepable(lease);
  RestoredLease two = kept;
  two.lease.chunks = {kGiB, 2 * kGiB};
  EXPECT_FALSE(next.ledger.RestoreLease(two, next.now, next.log).ok());
  ASSERT_TRUE(next.ledger.RestoreLease(kept, next.now, next.log).ok());
  EXPECT_TRUE(next.At(lease).ipc);
  next.ledger.LoseLease(lease, "gone", next.now, next.log);
  EXPECT_TRUE(next.Destroying(lease));
}

}  // namespace
}  // namespace gpulease::ledger
