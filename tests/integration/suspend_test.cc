// SPDX-License-Identifier: Apache-2.0
//
// Leases whose memory is given back while they stay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/raw_client.h"
#include "tests/e2e/watch_stream.h"

namespace gpulease::e2e {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr Bytes kSize = 8 * kMiB;
constexpr std::uint32_t kChunks = 4;

class SuspendTest : public ::testing::Test {
 protected:
  SuspendTest()
      : daemon_({.simulate = "1x1GiB", .config = "largest_chunk: \"2MiB\""}),
        owner_(daemon_.runtime_dir()),
        other_(daemon_.runtime_dir()) {
    owner_.Connect();
    other_.Connect();
    id_ = owner_.MustAllocate(DeviceSpec(kSize, "weights")).first.lease_id();
  }
  // As many chunks as came with the last call of `client`.
  // They are not kept: what holds a descriptor holds the memory.
  std::size_t Came(RawClient& client) {
    const auto chunks = client.Chunks(client.last_tag(), id_);
    return chunks.ok() ? chunks->size() : 0;
  }
  Bytes NotFree() {
    const v1::GetNodeResponse node = owner_.Node();
    return node.gpus(0).memory().total_bytes() - node.gpus(0).memory().free_bytes();
  }
  v1::Lease Shown() { return owner_.GetLease(id_).message.lease(); }
  void MustSuspend() {
    ASSERT_TRUE(Worked(owner_.Suspend(id_, kChunks)));
    ASSERT_TRUE(Worked(owner_.Suspend(id_, 0)));
    ASSERT_EQ(Shown().residence(), v1::RESIDENCE_SUSPENDED);
  }
  // With memory again; true when its chunks came.
  bool Filled() {
    const auto reply = owner_.Resume(id_, 0, 20'000);
    if (!Worked(reply)) return false;
    if (reply.message.growth_id() != 0 && !Worked(owner_.Await(reply.message.growth_id())))
      return false;
    return Came(owner_) == kChunks;
  }

  DaemonProcess daemon_;
  RawClient owner_, other_;
  std::uint64_t id_ = 0;
};

TEST_F(SuspendTest, ItIsChargedNothingAndComesBackWhole) {
  auto suspends = owner_.Suspend(id_, kChunks);
  ASSERT_TRUE(Worked(suspends));
  EXPECT_EQ(suspends.message.waits_for_size(), 0) << "the caller is none of them";
  EXPECT_EQ(suspends.message.lease().residence(), v1::RESIDENCE_SUSPENDING);
  EXPECT_EQ(NotFree(), kSize);
  MustSuspend();
  EXPECT_TRUE(Eventually([&] { return NotFree() == 0; }));
  EXPECT_EQ(Shown().size_bytes(), 0u);
  EXPECT_EQ(Shown().chunks_size(), 0);
  EXPECT_EQ(Shown().suspended_bytes(), kSize);
  EXPECT_EQ(Shown().state(), v1::LEASE_STATE_LEASED);
  EXPECT_EQ(Shown().name(), "weights");
  EXPECT_EQ(owner_.Node().lease_count(), 1u);
  ASSERT_TRUE(Filled());
  EXPECT_EQ(Shown().residence(), v1::RESIDENCE_RESUMING);
  ASSERT_TRUE(Worked(owner_.Resume(id_, kChunks)));
  EXPECT_EQ(Shown().residence(), v1::RESIDENCE_UNSPECIFIED);
  EXPECT_EQ(Shown().size_bytes(), kSize);
  EXPECT_EQ(Shown().requested_bytes(), kSize);
  EXPECT_TRUE(Worked(owner_.Release(id_)));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(owner_.Node()); }));
}

TEST_F(SuspendTest, OthersAreAwaitedToldAndGivenItBack) {
  WatchStream events(other_, other_.session_id());
  ASSERT_TRUE(events.Next(v1::Event::TYPE_READY));
  ASSERT_TRUE(Worked(other_.Open("weights", v1::ACCESS_READ_ONLY)));
  ASSERT_EQ(Came(other_), kChunks);
  const auto refused = owner_.Suspend(id_, kChunks);
  EXPECT_TRUE(Refused(refused, StatusCode::FAILED_PRECONDITION, v1::REASON_NOT_PARTAKING));
  EXPECT_THAT(refused.status.error_message(), HasSubstr("process " + std::to_string(getpid())));
  ASSERT_EQ(refused.detail.blockers_size(), 1);
  EXPECT_EQ(refused.detail.blockers(0).pid(), getpid());
  EXPECT_EQ(Shown().residence(), v1::RESIDENCE_UNSPECIFIED);
  ASSERT_TRUE(Worked(other_.Refresh(id_, kChunks, /*takes_part=*/true)));
  const auto waits = owner_.Suspend(id_, kChunks);
  ASSERT_TRUE(Worked(waits));
  ASSERT_EQ(waits.message.waits_for_size(), 1);
  EXPECT_EQ(waits.message.waits_for(0).session_id(), other_.session_id());
  EXPECT_EQ(events.Next(v1::Event::TYPE_SUSPENDING)->lease_id(), id_);
  EXPECT_EQ(other_.Refresh(id_, kChunks).message.open_chunks(), 0u);
  ASSERT_TRUE(Worked(other_.Refresh(id_, 0)));
  EXPECT_EQ(owner_.Suspend(id_, kChunks).message.waits_for_size(), 0);
  ASSERT_TRUE(Worked(owner_.Suspend(id_, 0)));
  EXPECT_TRUE(Eventually([&] { return NotFree() == 0; }));
  RawClient late(daemon_.runtime_dir());
  late.Connect();
  EXPECT_TRUE(Refused(late.Open(id_, v1::ACCESS_READ_ONLY), StatusCode::FAILED_PRECONDITION,
                      v1::REASON_SUSPENDED));
  ASSERT_TRUE(Filled());
  EXPECT_EQ(other_.Refresh(id_, 0).message.open_chunks(), 0u) << "not before it is filled";
  ASSERT_TRUE(Worked(owner_.Resume(id_, kChunks)));
  EXPECT_EQ(events.Next(v1::Event::TYPE_RESUMED)->lease_id(), id_);
  EXPECT_EQ(other_.Refresh(id_, 0).message.open_chunks(), kChunks);
  EXPECT_EQ(Came(other_), kChunks);
}

TEST_F(SuspendTest, AResumeIsAwaitedByAnIdOfItsOwn) {
  MustSuspend();
  EXPECT_TRUE(Eventually([&] { return NotFree() == 0; }));
  const std::uint64_t filler = other_.MustAllocate(DeviceSpec(kGiB)).first.lease_id();
  EXPECT_TRUE(Refused(owner_.Resume(id_, 0), StatusCode::UNAVAILABLE, v1::REASON_MEMORY_SHORT));
  const auto waits = owner_.Resume(id_, 0, 600'000);
  ASSERT_TRUE(Worked(waits));
  ASSERT_NE(waits.message.growth_id(), 0u);
  EXPECT_EQ(waits.message.queue_position(), 1u);
  EXPECT_EQ(Shown().target_bytes(), kSize);
  ASSERT_TRUE(Worked(owner_.Suspend(id_, 0)));
  EXPECT_EQ(owner_.Await(waits.message.growth_id()).status.error_code(), StatusCode::CANCELLED);
  const auto again = owner_.Resume(id_, 0, 600'000);
  ASSERT_TRUE(Worked(again));
  ASSERT_TRUE(Worked(other_.Release(filler)));
  const auto resumed = owner_.Await(again.message.growth_id());
  ASSERT_TRUE(Worked(resumed));
  EXPECT_EQ(resumed.message.leases(0).lease_id(), id_);
  EXPECT_EQ(Came(owner_), kChunks);
}

TEST_F(SuspendTest, WhatIsSuspendedEndsWithItsOwnerAndOthersAreTold) {
  ASSERT_TRUE(Worked(other_.Open("weights", v1::ACCESS_READ_ONLY)));
  ASSERT_EQ(Came(other_), kChunks);
  ASSERT_TRUE(Worked(other_.Refresh(id_, kChunks, /*takes_part=*/true)));
  ASSERT_TRUE(Worked(owner_.Suspend(id_, kChunks)));
  ASSERT_TRUE(Worked(other_.Refresh(id_, 0)));
  MustSuspend();
  ASSERT_TRUE(Worked(owner_.Release(id_)));
  const auto told = other_.Refresh(id_, 0);
  EXPECT_TRUE(Refused(told, StatusCode::FAILED_PRECONDITION, v1::REASON_SUSPENDED));
  EXPECT_THAT(told.status.error_message(), HasSubstr("its owner ended while it was suspended"));
  ASSERT_TRUE(Worked(other_.Close(id_)));
  EXPECT_TRUE(Eventually([&] { return other_.Node().lease_count() == 0; }));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(other_.Node()); }));
}

TEST_F(SuspendTest, WhatMakesNoSenseIsRefused) {
  const std::uint64_t host = owner_.MustAllocate(HostSpec(kMiB)).first.lease_id();
  EXPECT_TRUE(
      Refused(owner_.Suspend(host, 0), StatusCode::FAILED_PRECONDITION, v1::REASON_UNSUPPORTED));
  v1::AllocationSpec lasts = DeviceSpec(kMiB, "lasting");
  lasts.set_persistent(true);
  const std::uint64_t lasting = owner_.MustAllocate(lasts).first.lease_id();
  EXPECT_TRUE(
      Refused(owner_.Suspend(lasting, 0), StatusCode::FAILED_PRECONDITION, v1::REASON_UNSUPPORTED));
  EXPECT_TRUE(Worked(owner_.Release(lasting)));
  EXPECT_TRUE(Refused(owner_.Suspend(id_, kChunks + 1), StatusCode::INVALID_ARGUMENT,
                      v1::REASON_BAD_FIELD));
  EXPECT_TRUE(Refused(owner_.Resume(id_, 0, ~std::uint64_t{0}), StatusCode::INVALID_ARGUMENT,
                      v1::REASON_BAD_FIELD));
  EXPECT_TRUE(Refused(other_.Suspend(id_, 0), StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
  EXPECT_TRUE(Refused(other_.Resume(id_, 0), StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
  EXPECT_TRUE(
      Refused(other_.Refresh(id_, 0, true), StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
}

TEST_F(SuspendTest, ADrainWaitsForWhatIsSuspended) {
  MustSuspend();
  EXPECT_TRUE(Eventually([&] { return NotFree() == 0; }));
  v1::DrainRequest drain;
  grpc::ClientContext context;
  v1::DrainResponse drained;
  drain.set_gpu_uuid(owner_.Node().gpus(0).uuid());
  ASSERT_TRUE(owner_.nodes().Drain(&context, drain, &drained).ok());
  EXPECT_EQ(owner_.Node().gpus(0).state(), v1::GPU_STATE_DRAINING) << "it would be wanted again";
  ASSERT_TRUE(Worked(owner_.Release(id_)));
  // The daemon begins anew without the GPU then.
  EXPECT_TRUE(Eventually([&] {
    const auto node = RawClient(daemon_.runtime_dir()).GetNode();
    return node.ok() && node.message.gpus(0).state() == v1::GPU_STATE_DRAINED;
  }));
}

}  // namespace
}  // namespace gpulease::e2e
