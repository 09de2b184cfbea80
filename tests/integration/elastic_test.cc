// SPDX-License-Identifier: Apache-2.0
//
// Leases that grow and shrink in place.
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

using ::testing::HasSubstr;

constexpr Bytes kChunk = 2 * kMiB;

class ElasticTest : public ::testing::Test {
 protected:
  ElasticTest()
      : daemon_({.simulate = "1x1GiB"}),
        owner_(daemon_.runtime_dir()),
        reader_(daemon_.runtime_dir()) {
    owner_.Connect();
    reader_.Connect();
  }
  std::uint64_t MustAllocate(RawClient& client, const v1::AllocationSpec& spec) {
    return client.MustAllocate(spec).first.lease_id();
  }
  static v1::AllocationSpec Elastic(const std::string& name = "") {
    v1::AllocationSpec spec = DeviceSpec(kChunk, name);
    spec.set_reserve_bytes(kGiB);
    return spec;
  }
  // As many chunks as came with the last call of `client`.
  // They are not kept: what holds a descriptor holds the memory.
  static std::size_t Came(RawClient& client, std::uint64_t lease) {
    const auto chunks = client.Chunks(client.last_tag(), lease);
    return chunks.ok() ? chunks->size() : 0;
  }
  void MustGrow(std::uint64_t lease, Bytes size, std::uint32_t have) {
    const auto reply = owner_.Resize(lease, size, have, 10'000);
    ASSERT_TRUE(Worked(reply));
    if (reply.message.growth_id() != 0)
      ASSERT_TRUE(Worked(owner_.Await(reply.message.growth_id())));
    ASSERT_GT(Came(owner_, lease), 0u);
  }
  Bytes NotFree() {
    const v1::GetNodeResponse node = owner_.Node();
    return node.gpus(0).memory().total_bytes() - node.gpus(0).memory().free_bytes();
  }

  DaemonProcess daemon_;
  RawClient owner_, reader_;
};

TEST_F(ElasticTest, ItIsChargedForWhatItHasAndGivesBackWhatItFrees) {
  const std::uint64_t id = MustAllocate(owner_, Elastic());
  EXPECT_EQ(owner_.GetLease(id).message.lease().reserved_bytes(), kGiB);
  EXPECT_EQ(NotFree(), kChunk);
  MustGrow(id, 5 * kChunk, 1);
  EXPECT_EQ(NotFree(), 5 * kChunk);
  const auto shown = owner_.GetLease(id);
  EXPECT_EQ(shown.message.lease().size_bytes(), 5 * kChunk);
  EXPECT_EQ(shown.message.lease().chunks_size(), 2);
  EXPECT_EQ(owner_.Node().lease_count(), 1u);
  auto again = owner_.Resize(id, 5 * kChunk, 0);
  ASSERT_TRUE(Worked(again));
  EXPECT_EQ(again.message.open_chunks(), 2u);
  EXPECT_EQ(Came(owner_, id), 2u) << "all that it lacks";
  again = owner_.Resize(id, kChunk, 1);
  ASSERT_TRUE(Worked(again));
  EXPECT_EQ(again.message.lease().size_bytes(), kChunk);
  EXPECT_EQ(again.message.waits_for_size(), 0);
  EXPECT_TRUE(Eventually([&] { return NotFree() == kChunk; }));
  EXPECT_TRUE(Worked(owner_.Release(id)));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(owner_.Node()); }));
}

TEST_F(ElasticTest, AShrinkSaysForWhomItWaitsAndGoesOnWhenHeLetsGo) {
  const std::uint64_t id = MustAllocate(owner_, Elastic("cache"));
  MustGrow(id, 3 * kChunk, 1);
  WatchStream events(reader_, reader_.session_id());
  ASSERT_TRUE(events.Next(v1::Event::TYPE_READY));
  ASSERT_TRUE(Worked(reader_.Open("cache", v1::ACCESS_READ_ONLY)));
  EXPECT_EQ(Came(reader_, id), 2u);
  auto shrinks = owner_.Resize(id, kChunk, 1);
  ASSERT_TRUE(Worked(shrinks));
  ASSERT_EQ(shrinks.message.waits_for_size(), 1);
  EXPECT_EQ(shrinks.message.waits_for(0).pid(), getpid());
  EXPECT_EQ(shrinks.message.waits_for(0).session_id(), reader_.session_id());
  EXPECT_EQ(shrinks.message.lease().size_bytes(), 3 * kChunk) << "until it is free";
  EXPECT_EQ(shrinks.message.lease().target_bytes(), kChunk);
  EXPECT_EQ(events.Next(v1::Event::TYPE_RESIZED)->lease_id(), id);
  RawClient late(daemon_.runtime_dir());
  late.Connect();
  const auto opened = late.Open(id, v1::ACCESS_READ_ONLY);
  ASSERT_TRUE(Worked(opened));
  EXPECT_EQ(opened.message.lease().size_bytes(), kChunk) << "what stays";
  EXPECT_EQ(Came(late, id), 1u);
  auto refreshed = reader_.Refresh(id, 2);
  ASSERT_TRUE(Worked(refreshed));
  EXPECT_EQ(refreshed.message.open_chunks(), 1u);
  EXPECT_EQ(NotFree(), 3 * kChunk);
  ASSERT_TRUE(Worked(reader_.Refresh(id, 1)));
  EXPECT_EQ(owner_.GetLease(id).message.lease().size_bytes(), kChunk);
  EXPECT_TRUE(Eventually([&] { return NotFree() == kChunk; }));
  MustGrow(id, 4 * kChunk, 1);
  EXPECT_EQ(events.Next(v1::Event::TYPE_RESIZED)->lease_id(), id);
  refreshed = reader_.Refresh(id, 1);
  ASSERT_TRUE(Worked(refreshed));
  EXPECT_EQ(Came(reader_, id), 1u);
  EXPECT_EQ(refreshed.message.lease().size_bytes(), 4 * kChunk);
}

TEST_F(ElasticTest, AGrowthIsAwaitedByAnIdOfItsOwn) {
  const std::uint64_t filler = MustAllocate(reader_, DeviceSpec(kGiB - 4 * kChunk));
  const std::uint64_t id = MustAllocate(owner_, Elastic());
  EXPECT_TRUE(Refused(owner_.Resize(id, 8 * kChunk, 1), grpc::StatusCode::UNAVAILABLE,
                      v1::REASON_MEMORY_SHORT));
  const auto grows = owner_.Resize(id, 8 * kChunk, 1, 600'000);
  ASSERT_TRUE(Worked(grows));
  const std::uint64_t growth = grows.message.growth_id();
  ASSERT_NE(growth, 0u);
  EXPECT_EQ(grows.message.queue_position(), 1u);
  EXPECT_EQ(grows.message.lease().target_bytes(), 8 * kChunk);
  EXPECT_EQ(owner_.Resize(id, 8 * kChunk, 1, 600'000).message.growth_id(), growth);
  const auto shown = owner_.GetLease(id);
  EXPECT_EQ(shown.message.lease().queue_position(), 1u);
  EXPECT_GT(shown.message.lease().blockers_size(), 0);
  EXPECT_EQ(owner_.ListLeases().message.leases_size(), 2) << "the growth is none of them";
  ASSERT_TRUE(Worked(reader_.Release(filler)));
  auto grown = owner_.Await(growth);
  ASSERT_TRUE(Worked(grown));
  ASSERT_EQ(grown.message.leases_size(), 1);
  EXPECT_EQ(grown.message.leases(0).lease_id(), id);
  EXPECT_EQ(grown.message.leases(0).size_bytes(), 8 * kChunk);
  EXPECT_EQ(Came(owner_, id), 1u);
  grown = owner_.Await(growth);
  ASSERT_TRUE(Worked(grown)) << "who comes late is told the same";
  EXPECT_EQ(Came(owner_, id), 1u);
}

TEST_F(ElasticTest, AGrowthIsGivenUpAndTheLeaseGoesOn) {
  const std::uint64_t filler = MustAllocate(reader_, DeviceSpec(kGiB - kChunk));
  const std::uint64_t id = MustAllocate(owner_, Elastic());
  const std::uint64_t growth = owner_.Resize(id, 8 * kChunk, 1, 600'000).message.growth_id();
  ASSERT_NE(growth, 0u);
  EXPECT_TRUE(Worked(owner_.Release(growth)));
  EXPECT_EQ(owner_.Await(growth).status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(owner_.GetLease(id).message.lease().target_bytes(), 0u);
  EXPECT_NE(owner_.Resize(id, 8 * kChunk, 1, 600'000).message.growth_id(), 0u);
  ASSERT_TRUE(Worked(reader_.Release(filler)));
  EXPECT_TRUE(Worked(owner_.Release(id))) << "and ends with what it grows by";
  EXPECT_TRUE(Eventually([&] { return IsAllFree(owner_.Node()); }));
}

TEST_F(ElasticTest, WhoDiesLetsGoAndTheOwnersDeathFreesAll) {
  const std::uint64_t id = MustAllocate(owner_, Elastic("cache"));
  MustGrow(id, 3 * kChunk, 1);
  ASSERT_TRUE(Worked(reader_.Open("cache", v1::ACCESS_READ_ONLY)));
  ASSERT_EQ(Came(reader_, id), 2u);
  ASSERT_EQ(owner_.Resize(id, kChunk, 1).message.waits_for_size(), 1);
  ASSERT_TRUE(Worked(reader_.Close(id)));
  EXPECT_TRUE(Eventually([&] { return NotFree() == kChunk; }));
  MustGrow(id, 3 * kChunk, 1);
  ASSERT_TRUE(Worked(owner_.Release(id)));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(reader_.Node()); }));
}

TEST_F(ElasticTest, WhatMakesNoSenseIsRefused) {
  using grpc::StatusCode;
  v1::AllocationSpec host = HostSpec(kMiB);
  host.set_reserve_bytes(kGiB);
  EXPECT_TRUE(
      Refused(owner_.Allocate({host}), StatusCode::INVALID_ARGUMENT, v1::REASON_UNSUPPORTED));
  v1::AllocationSpec small = DeviceSpec(2 * kChunk);
  small.set_reserve_bytes(kChunk);
  v1::AllocationSpec large = DeviceSpec(2 * kChunk);
  large.set_reserve_bytes(~std::uint64_t{0});
  for (const v1::AllocationSpec& spec : {small, large}) {
    EXPECT_TRUE(
        Refused(owner_.Allocate({spec}), StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD));
  }
  const std::uint64_t id = MustAllocate(owner_, Elastic());
  const std::uint64_t fixed = MustAllocate(owner_, DeviceSpec(kChunk));
  for (const Bytes size : {Bytes{0}, kGiB + 1, ~Bytes{0}}) {
    EXPECT_TRUE(
        Refused(owner_.Resize(id, size, 1), StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD));
  }
  EXPECT_TRUE(
      Refused(owner_.Resize(id, kChunk, 2), StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD));
  EXPECT_TRUE(Refused(owner_.Resize(id, kChunk, 1, ~std::uint64_t{0}), StatusCode::INVALID_ARGUMENT,
                      v1::REASON_BAD_FIELD));
  const auto refused = owner_.Resize(fixed, 2 * kChunk, 1);
  EXPECT_TRUE(Refused(refused, StatusCode::FAILED_PRECONDITION, v1::REASON_UNSUPPORTED));
  EXPECT_THAT(refused.status.error_message(), HasSubstr("reserve_bytes"));
  EXPECT_TRUE(
      Refused(reader_.Resize(id, kChunk, 0), StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
  EXPECT_TRUE(Refused(reader_.Refresh(id, 0), StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
}

}  // namespace
}  // namespace gpulease::e2e
