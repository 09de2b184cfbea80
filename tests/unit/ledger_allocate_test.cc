// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::hours;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr Bytes kMost = std::numeric_limits<Bytes>::max();

void ExpectBadField(const Result<Allocated>& result) {
  ExpectRefused(result, Code::kInvalidArgument, Reason::kBadField);
}
void ExpectTooLarge(const Result<Allocated>& result) {
  ExpectRefused(result, Code::kInvalidArgument, Reason::kTooLarge);
}

TEST(LedgerAllocateTest, GrantsInWholePagesAndChunks) {
  World world;
  const SessionId session = world.Open();
  AllocationSpec spec = Spec(2 * kGiB + 1);
  spec.alignment = kGiB;
  const Allocated answer = world.Ask(session, {spec}).value();
  EXPECT_EQ(answer.state, State::kMaking);
  EXPECT_EQ(world.Seen(Effect::Kind::kMake)[0].group, answer.group);
  const Lease* lease = world.ledger.FindLease(answer.leases[0]);
  EXPECT_EQ(lease->requested, 2 * kGiB + 1);
  EXPECT_EQ(lease->size, 2 * kGiB + 2 * kMiB);
  EXPECT_THAT(lease->chunks, ElementsAre(kGiB, kGiB, 2 * kMiB));
  EXPECT_EQ(lease->alignment, kGiB);
  EXPECT_EQ(world.Use().offered, lease->size);
  EXPECT_TRUE(world.Make(answer.group));
  EXPECT_EQ(lease->state, State::kOffered);
  EXPECT_EQ(world.Seen(Effect::Kind::kReady)[0].group, answer.group);
  EXPECT_TRUE(world.Told(EventType::kGranted, lease->id).empty());
  world.ledger.Take(session, lease->id, world.now, world.log);
  EXPECT_EQ(lease->state, State::kLeased);
  EXPECT_EQ(world.Use().leased, lease->size);
  EXPECT_EQ(world.Use().free, 100 * kGiB - lease->size);
}

TEST(LedgerAllocateTest, AlignsToTheGranularityWhenNothingIsAsked) {
  World world;
  const SessionId session = world.Open();
  EXPECT_EQ(world.ledger.FindLease(world.Offer(session, Spec(1)))->alignment, 2 * kMiB);
}

TEST(LedgerAllocateTest, SaysThePageSizeThatWasMade) {
  World world;
  const SessionId session = world.Open();
  AllocationSpec spec = HostSpec(kMiB);
  spec.page_size = PageSize::kHuge;
  const Allocated answer = world.Ask(session, {spec}).value();
  EXPECT_EQ(world.ledger.FindLease(answer.leases[0])->page_size, PageSize::kHuge);
  world.Make(answer.group);
  EXPECT_EQ(world.ledger.FindLease(answer.leases[0])->page_size, PageSize::kSmall);
}

TEST(LedgerAllocateTest, RefusesFieldsOutsideTheirRange) {
  World world;
  const SessionId session = world.Open();
  ExpectBadField(world.Ask(session, std::vector<AllocationSpec>{}));
  ExpectBadField(world.Ask(session, std::vector<AllocationSpec>(65, Spec(1))));
  ExpectBadField(world.Ask(session, Bytes{0}));
  AllocationSpec spec = Spec(1);
  spec.alignment = 3;
  ExpectBadField(world.Ask(session, {spec}));
  spec.alignment = 2 * kGiB;
  ExpectBadField(world.Ask(session, {spec}));
  ExpectBadField(world.Ask(session, {Spec(1, {2})}));
  ExpectBadField(world.Ask(session, {Spec(1, {1})}));  // host memory
  spec = Spec(1);
  spec.mode = 0700;
  ExpectBadField(world.Ask(session, {spec}));
  spec = Spec(1);
  spec.gid = 5;
  ExpectBadField(world.Ask(session, {spec}));
  ExpectBadField(world.Ask(session, {Named(1, "a"), Named(1, "a")}));
  ExpectBadField(world.Ask(session, 1, hours(24) + nanoseconds(1)));
  ExpectBadField(world.Ask(session, 1, nanoseconds(-1)));
  EXPECT_EQ(world.ledger.lease_count(), 0u);
}

TEST(LedgerAllocateTest, TakesGroupsOfTheUserAndAnyFromAnAdministrator) {
  World world;
  SessionSpec client = world.Client(1000);
  client.user.groups = {5};
  AllocationSpec spec = Spec(1);
  spec.gid = 5;
  EXPECT_TRUE(world.Ask(world.Open(client), {spec}).ok());
  spec.gid = 77;
  EXPECT_TRUE(world.Ask(world.Open(0), {spec}).ok());
}

TEST(LedgerAllocateTest, RefusesAtOnceWhatCanNeverBeGiven) {
  Options options = OneGpu();
  options.pools[0].headroom = 10 * kGiB;
  World world(options);
  const SessionId session = world.Open();
  for (const Bytes size : {kMost, kMost - kMiB, Bytes{1} << 63, 91 * kGiB})
    ExpectTooLarge(world.Ask(session, size, hours(1)));
  const Result<Allocated> result = world.Ask(session, 91 * kGiB, hours(1));
  EXPECT_EQ(result.error().message,
            "GPU-0: asked 91.0 GiB, it never leases more than 90.0 GiB (100.0 GiB less 10.0 GiB "
            "headroom): ask for less");
  EXPECT_EQ(result.error().requested_bytes, 91 * kGiB);
  EXPECT_EQ(result.error().limit_bytes, 90 * kGiB);
  ExpectTooLarge(world.Ask(session, {Spec(50 * kGiB), Spec(50 * kGiB)}, hours(1)));
  ExpectTooLarge(world.Ask(session, {Spec(1), Spec(kMost)}, hours(1)));
  ExpectTooLarge(
      world.Ask(session, std::vector<AllocationSpec>(64, Spec(Bytes{1} << 58)), hours(1)));
  EXPECT_TRUE(world.Ask(session, 90 * kGiB).ok());
}

TEST(LedgerAllocateTest, RefusesAGroupThatNeverFitsTogether) {
  World world(TwoGpus());
  const SessionId session = world.Open();
  ExpectTooLarge(world.Ask(session, {Spec(6 * kGiB), Spec(6 * kGiB), Spec(6 * kGiB)}, hours(1)));
  ExpectTooLarge(world.Ask(session, {Spec(6 * kGiB, {1}), Spec(6 * kGiB, {1})}, hours(1)));
  EXPECT_TRUE(world.Ask(session, {Spec(6 * kGiB), Spec(6 * kGiB)}).ok());
}

TEST(LedgerAllocateTest, FindsAPlaceThatTheOrderOfSpecsHides) {
  World world(TwoGpus());
  const SessionId session = world.Open();
  EXPECT_TRUE(world.Ask(session, {Spec(4 * kGiB), Spec(4 * kGiB), Spec(10 * kGiB)}).ok());
}

TEST(LedgerAllocateTest, LetsWhatMayGoAnywhereGoAroundWhatMayNot) {
  World world(TwoGpus());
  const SessionId session = world.Open();
  EXPECT_TRUE(world.Ask(session, {Spec(8 * kGiB), Spec(6 * kGiB, {0})}).ok());
}

TEST(LedgerAllocateTest, PutsEachOnThePoolWithTheMostFreeMemory) {
  World world(TwoGpus());
  const SessionId session = world.Open();
  const Allocated both = world.Ask(session, {Spec(3 * kGiB), Spec(kGiB), Spec(kGiB)}).value();
  EXPECT_EQ(world.ledger.FindLease(both.leases[0])->pool, 0u);
  EXPECT_EQ(world.ledger.FindLease(both.leases[1])->pool, 1u);
  EXPECT_EQ(world.ledger.FindLease(both.leases[2])->pool, 1u);
  const Allocated listed = world.Ask(session, {Spec(kGiB, {0})}).value();
  EXPECT_EQ(world.ledger.FindLease(listed.leases[0])->pool, 0u);
}

TEST(LedgerAllocateTest, GrantsAllOrNothing) {
  World world(TwoGpus());
  const SessionId session = world.Open();
  world.Lend(session, Spec(5 * kGiB, {1}));
  ExpectRefused(world.Ask(session, {Spec(10 * kGiB, {0}), Spec(6 * kGiB, {1})}), Code::kUnavailable,
                Reason::kMemoryShort);
  EXPECT_EQ(world.Use(0).free, 10 * kGiB);
  EXPECT_EQ(world.ledger.lease_count(), 1u);
}

TEST(LedgerAllocateTest, NeverLeasesTheHeadroom) {
  Options options = OneGpu();
  options.pools[0].headroom = kGiB;
  World world(options);
  const SessionId session = world.Open();
  world.Lend(session, 99 * kGiB);
  EXPECT_EQ(world.Use().free, kGiB);
  ExpectRefused(world.Ask(session, 1), Code::kUnavailable, Reason::kMemoryShort);
}

TEST(LedgerAllocateTest, SaysWhatStandsInTheWay) {
  World world;
  const SessionId holder = world.Open(1000), asker = world.Open(1000);
  const LeaseId large = world.Lend(holder, 46 * kGiB);
  const LeaseId larger = world.Lend(holder, 50 * kGiB);
  const Result<Allocated> result = world.Ask(asker, 60 * kGiB);
  ExpectRefused(result, Code::kUnavailable, Reason::kMemoryShort);
  const Error& error = result.error();
  EXPECT_EQ(error.message, "GPU-0: asked 60.0 GiB, 4.0 GiB free, 50.0 GiB more when lease " +
                               std::to_string(larger.value) +
                               " (pid 1001, uid 1000) ends: retry after a release, or wait in the "
                               "queue");
  EXPECT_EQ(error.requested_bytes, 60 * kGiB);
  EXPECT_EQ(error.available_bytes, 4 * kGiB);
  ASSERT_EQ(error.blockers.size(), 2u);
  EXPECT_EQ(error.blockers[0].lease_id, larger.value);
  EXPECT_EQ(error.blockers[1].lease_id, large.value);
  EXPECT_EQ(error.blockers[1].size_bytes, 46 * kGiB);
}

TEST(LedgerAllocateTest, DoesNotTellWhoseTheMemoryIsToThoseWhoMayNotSee) {
  World world;
  world.Lend(world.Open(1000), 100 * kGiB);
  const Result<Allocated> result = world.Ask(world.Open(1001), kGiB);
  EXPECT_THAT(result.error().message, HasSubstr("when a lease of another user ends"));
  EXPECT_THAT(result.error().message, Not(HasSubstr("1000")));
}

TEST(LedgerAllocateTest, NamesAtMostEightBlockersTheLargestFirst) {
  World world;
  const SessionId session = world.Open();
  for (Bytes size = 1; size <= 13; ++size) world.Lend(session, size * kGiB);
  const Result<Allocated> result = world.Ask(session, 20 * kGiB);
  ASSERT_EQ(result.error().blockers.size(), 8u);
  for (Bytes i = 0; i < 8; ++i) EXPECT_EQ(result.error().blockers[i].size_bytes, (13 - i) * kGiB);
}

TEST(LedgerAllocateTest, ChargesATenantWholePages) {
  World world;
  const SessionId session = world.Open(world.Client(1000, 4 * kMiB));
  world.Lend(session, 1);
  world.Lend(session, 1);
  const Result<Allocated> result = world.Ask(session, 512);
  ExpectRefused(result, Code::kResourceExhausted, Reason::kTenantLimit);
  EXPECT_EQ(result.error().message,
            "tenant t1000: charged 4.0 MiB of its 4.0 MiB of device memory, asked 512 B (2.0 MiB "
            "in whole pages): retry after it releases something");
  EXPECT_EQ(result.error().limit_bytes, 4 * kMiB);
}

TEST(LedgerAllocateTest, LimitsDeviceAndHostMemoryOfATenantApart) {
  World world;
  const SessionId session = world.Open(world.Client(1000, kGiB, kMiB));
  world.Lend(session, kGiB);
  EXPECT_TRUE(world.Ask(session, {HostSpec(kMiB)}).ok());
  ExpectRefused(world.Ask(session, {HostSpec(1)}), Code::kResourceExhausted, Reason::kTenantLimit);
}

TEST(LedgerAllocateTest, RefusesAtOnceWhatATenantCanNeverHave) {
  World world;
  const SessionId session = world.Open(world.Client(1000, kGiB));
  ExpectTooLarge(world.Ask(session, kGiB + 1, hours(1)));
  ExpectTooLarge(world.Ask(session, {Spec(kGiB), Spec(1)}, hours(1)));
}

TEST(LedgerAllocateTest, ChargesATenantUntilTheBytesAreReallyFree) {
  World world;
  const SessionId session = world.Open(world.Client(1000, kGiB));
  const LeaseId lease = world.Lend(session, kGiB);
  ASSERT_TRUE(world.Release(session, lease).ok());
  world.Destroyed(lease);
  ExpectRefused(world.Ask(session, 1), Code::kResourceExhausted, Reason::kTenantLimit);
  world.Observe(0, 0);
  EXPECT_TRUE(world.Ask(session, kGiB).ok());
}

TEST(LedgerAllocateTest, RefusesANameThatIsTakenAndFreesItWithTheRelease) {
  World world;
  const SessionId session = world.Open(1000), holder = world.Open(1000), other = world.Open(1001);
  const LeaseId lease = world.Lend(session, Named(kGiB, "weights"));
  ExpectRefused(world.Ask(holder, {Named(1, "weights")}), Code::kAlreadyExists, Reason::kNameTaken);
  EXPECT_TRUE(world.Ask(other, {Named(1, "weights")}).ok());
  world.Hold(holder, lease);
  ASSERT_TRUE(world.Release(session, lease).ok());
  EXPECT_TRUE(world.Ask(holder, {Named(1, "weights")}).ok());
}

TEST(LedgerAllocateTest, RefusesMoreLeasesThanAUserMayHave) {
  Options options = OneGpu();
  options.limits.leases_per_user = 3;
  World world(options);
  const SessionId session = world.Open();
  ExpectRefused(world.Ask(session, std::vector<AllocationSpec>(4, Spec(1))),
                Code::kResourceExhausted, Reason::kSessionLimit);
  const LeaseId lease = world.Lend(session, 1);
  ExpectRefused(world.Ask(session, std::vector<AllocationSpec>(3, Spec(1))),
                Code::kResourceExhausted, Reason::kSessionLimit);
  EXPECT_TRUE(world.Ask(session, {Spec(1), Spec(1)}).ok());
  world.Return(session, lease);
  EXPECT_TRUE(world.Ask(session, 1).ok());
}

TEST(LedgerAllocateTest, RefusesMoreWaitsThanAUserMayHave) {
  Options options = OneGpu();
  options.limits.waits_per_user = 1;
  World world(options);
  const SessionId session = world.Open();
  world.Lend(session, 100 * kGiB);
  const LeaseId queued = world.Queue(session, 1);
  ExpectRefused(world.Ask(session, 1, hours(1)), Code::kResourceExhausted, Reason::kSessionLimit);
  ASSERT_TRUE(world.Release(session, queued).ok());
  world.Queue(session, 1);
}

TEST(LedgerAllocateTest, KeepsWithinTheDescriptorsAndNeverQueuesForThem) {
  Options options = OneGpu();
  options.limits.chunks = 4;
  World world(options);
  const SessionId session = world.Open();
  ExpectTooLarge(world.Ask(session, 5 * kGiB, hours(1)));
  const LeaseId lease = world.Lend(session, 3 * kGiB);
  ExpectRefused(world.Ask(session, 2 * kGiB, hours(1)), Code::kResourceExhausted,
                Reason::kDescriptorLimit);
  EXPECT_EQ(world.ledger.chunk_count(), 3u);
  ASSERT_TRUE(world.Release(session, lease).ok());
  EXPECT_EQ(world.ledger.chunk_count(), 3u);
  world.Destroyed(lease);
  EXPECT_EQ(world.ledger.chunk_count(), 0u);
  EXPECT_TRUE(world.Ask(session, 4 * kGiB).ok());
}

TEST(LedgerAllocateTest, FailsAWaiterThatFindsMemoryButNoDescriptors) {
  Options options = TwoGpus();
  options.limits.chunks = 12;
  World world(options);
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, Spec(10 * kGiB, {0}));
  const Allocated waiting = world.Ask(session, {Spec(2 * kGiB, {0})}, hours(1)).value();
  world.Lend(session, Spec(2 * kGiB, {1}));
  ASSERT_TRUE(world.Release(session, lease).ok());
  world.Destroyed(lease);
  for (int i = 0; i < 10; ++i) world.Lend(session, Spec(1, {1}));
  EXPECT_EQ(world.ledger.chunk_count(), 12u);
  EXPECT_EQ(world.Failure(waiting.group), nullptr);
  world.Observe(0, 0);
  ASSERT_NE(world.Failure(waiting.group), nullptr);
  EXPECT_EQ(world.Failure(waiting.group)->reason, Reason::kDescriptorLimit);
}

TEST(LedgerAllocateTest, RefusesWhenEveryPoolThatWouldDoIsUnusable) {
  World world(TwoGpus());
  const SessionId session = world.Open();
  world.ledger.SetPoolUsable(0, false, "drained", world.now, world.log);
  const Result<Allocated> result = world.Ask(session, {Spec(1, {0})}, hours(1));
  ExpectRefused(result, Code::kUnavailable, Reason::kGpuUnavailable);
  EXPECT_EQ(result.error().message, "GPU-0: not usable now (drained): retry when it is back");
  const Allocated any = world.Ask(session, {Spec(1)}).value();
  EXPECT_EQ(world.ledger.FindLease(any.leases[0])->pool, 1u);
  ExpectRefused(world.Ask(session, {HostSpec(1)}), Code::kUnavailable, Reason::kGpuUnavailable);
  world.ledger.SetPoolUsable(0, true, "", world.now, world.log);
  EXPECT_TRUE(world.Ask(session, {Spec(1, {0})}).ok());
}

TEST(LedgerAllocateTest, AnswersARetryWithTheSameLeases) {
  World world;
  const SessionId session = world.Open(), other = world.Open();
  const Allocated first = world.Ask(session, {Spec(kGiB), Spec(kGiB)}, {}, "r1").value();
  const auto retry = [&] { return world.Ask(session, {Spec(kGiB), Spec(kGiB)}, {}, "r1").value(); };
  Allocated again = retry();
  EXPECT_TRUE(again.retry);
  EXPECT_EQ(again.leases, first.leases);
  EXPECT_EQ(again.state, State::kMaking);
  world.Make(first.group);
  EXPECT_EQ(retry().state, State::kOffered);
  for (const LeaseId lease : first.leases) world.ledger.Take(session, lease, world.now, world.log);
  EXPECT_EQ(retry().state, State::kLeased);
  EXPECT_EQ(world.ledger.lease_count(), 2u);
  EXPECT_FALSE(world.Ask(other, {Spec(kGiB)}, {}, "r1")->retry);
}

TEST(LedgerAllocateTest, ForgetsARequestIdWithItsGroup) {
  World world;
  const SessionId session = world.Open();
  const Allocated failed = world.Ask(session, {Spec(kGiB)}, {}, "r1").value();
  world.Fail(failed.group, Reason::kDriver);
  const Allocated second = world.Ask(session, {Spec(kGiB)}, {}, "r1").value();
  EXPECT_FALSE(second.retry);
  world.Make(second.group);
  ASSERT_TRUE(world.Release(session, second.leases[0]).ok());
  EXPECT_FALSE(world.Ask(session, {Spec(kGiB)}, {}, "r1")->retry);
}

TEST(LedgerAllocateTest, ARetryHandsOverAgainWhatTheOwnerHadClosed) {
  World world;
  const SessionId session = world.Open();
  const Allocated first = world.Ask(session, {Spec(kGiB)}, {}, "r1").value();
  world.Make(first.group);
  world.ledger.Take(session, first.leases[0], world.now, world.log);
  ASSERT_TRUE(world.Close(session, first.leases[0]).ok());
  EXPECT_TRUE(world.Ask(session, {Spec(kGiB)}, {}, "r1")->retry);
  EXPECT_EQ(world.ledger.FindLease(first.leases[0])->holders.size(), 1u);
}

TEST(LedgerAllocateTest, FailsAGroupThatTheExecutorCouldNotMake) {
  World world;
  const SessionId session = world.Open();
  const Allocated answer = world.Ask(session, kGiB).value();
  world.Fail(answer.group, Reason::kHostMemoryShort, "locked-memory limit");
  EXPECT_EQ(world.Failure(answer.group)->message, "locked-memory limit");
  EXPECT_TRUE(world.Gone(answer.leases[0]));
  EXPECT_EQ(world.Use().free, 100 * kGiB);
  ExpectRefused(world.ledger.FindGroup(session, answer.leases[0]), Code::kNotFound,
                Reason::kNotOpenable);
}

TEST(LedgerAllocateTest, FindsTheGroupOfALeaseForItsOwnerAlone) {
  World world;
  const SessionId session = world.Open(), other = world.Open();
  const Allocated answer = world.Ask(session, {Spec(kGiB), Spec(kGiB)}).value();
  EXPECT_EQ(world.ledger.FindGroup(session, answer.leases[1])->group, answer.group);
  EXPECT_EQ(world.ledger.FindGroup(session, answer.leases[1])->leases, answer.leases);
  ExpectRefused(world.ledger.FindGroup(other, answer.leases[1]), Code::kNotFound,
                Reason::kNotOpenable);
  EXPECT_EQ(world.ledger.GroupLeases(answer.group), answer.leases);
}

TEST(LedgerAllocateTest, StopFailsEveryWaitAndRefusesNewRequests) {
  World world;
  const SessionId session = world.Open();
  const LeaseId lease = world.Lend(session, 100 * kGiB);
  const Allocated waiting = world.Ask(session, kGiB, hours(1)).value();
  world.ledger.Stop(world.now, world.log);
  EXPECT_EQ(world.Failure(waiting.group)->reason, Reason::kStopping);
  ExpectRefused(world.Ask(session, kGiB), Code::kUnavailable, Reason::kStopping);
  EXPECT_TRUE(world.Release(session, lease).ok());
}

}  // namespace
}  // namespace gpulease::ledger
