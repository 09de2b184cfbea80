// SPDX-License-Identifier: Apache-2.0
//
// The life of a lease, call by call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>

#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;

class LeaseCallsTest : public ::testing::Test {
 protected:
  LeaseCallsTest() : client_(daemon_.runtime_dir()), other_(daemon_.runtime_dir()) {
    client_.Connect();
    other_.Connect();
  }
  v1::LeaseState StateOf(std::uint64_t lease) {
    const auto reply = client_.GetLease(lease);
    return reply.ok() ? reply.message.lease().state() : v1::LEASE_STATE_UNSPECIFIED;
  }
  bool EventuallyIs(std::uint64_t lease, v1::LeaseState state) {
    return Eventually([&] { return StateOf(lease) == state; });
  }

  DaemonProcess daemon_;
  RawClient client_;
  RawClient other_;  // another session of this process
};

std::pair<dev_t, ino_t> FileOf(const UniqueFd& fd) {
  struct stat status {};
  fstat(fd.get(), &status);
  return {status.st_dev, status.st_ino};
}

TEST_F(LeaseCallsTest, AGrantSaysWhatWasGrantedAndItsDescriptorsCameBefore) {
  v1::AllocationSpec spec = DeviceSpec(3 * kMiB, "weights");
  spec.set_mode(0640);
  spec.set_alignment_bytes(16 * kMiB);
  (*spec.mutable_labels())["job"] = "7";
  const auto reply = client_.Allocate({spec});
  ASSERT_TRUE(Worked(reply));
  ASSERT_EQ(reply.message.leases_size(), 1);
  const v1::Lease& lease = reply.message.leases(0);
  EXPECT_EQ(lease.state(), v1::LEASE_STATE_OFFERED);
  EXPECT_EQ(lease.kind(), v1::MEMORY_KIND_DEVICE);
  EXPECT_EQ(lease.requested_bytes(), 3 * kMiB);
  EXPECT_EQ(lease.size_bytes(), 4 * kMiB);
  EXPECT_EQ(lease.alignment_bytes(), 16 * kMiB);
  EXPECT_EQ(lease.name(), "weights");
  EXPECT_EQ(lease.mode(), 0640u);
  EXPECT_EQ(lease.uid(), geteuid());
  EXPECT_EQ(lease.labels().at("job"), "7");
  EXPECT_THAT(lease.gpu_uuid(), HasSubstr("GPU-"));
  EXPECT_LT(lease.lease_id(), 1ull << 53);
  ASSERT_EQ(lease.chunks_size(), 1);
  EXPECT_EQ(lease.chunks(0).size_bytes(), 4 * kMiB);
  const auto chunks = client_.Chunks(client_.last_tag(), lease.lease_id());
  ASSERT_TRUE(chunks.ok()) << chunks.error().message;
  EXPECT_EQ(chunks->size(), 1u);
  EXPECT_TRUE(EventuallyIs(lease.lease_id(), v1::LEASE_STATE_LEASED));
  const v1::GetNodeResponse node = client_.Node();
  EXPECT_TRUE(AddsUp(node));
  EXPECT_EQ(node.lease_count(), 1u);
}

TEST_F(LeaseCallsTest, EveryReplyCarriesTheInstance) {
  std::string welcome;
  for (const std::uint8_t byte : client_.welcome().instance) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    welcome += digits;
  }
  EXPECT_EQ(client_.GetNode().instance, welcome);
  EXPECT_EQ(client_.Node().instance(), welcome);
  EXPECT_EQ(client_.Allocate({DeviceSpec(1)}).instance, welcome);
  EXPECT_EQ(client_.Allocate({DeviceSpec(0)}).instance, welcome);
  EXPECT_EQ(client_.Open("nothing").instance, welcome);
  EXPECT_EQ(client_.Close(1).instance, welcome);
  EXPECT_EQ(client_.Release(1).instance, welcome);
  EXPECT_EQ(client_.GetLease(1).instance, welcome);
  EXPECT_EQ(client_.Await(1).instance, welcome);
  EXPECT_EQ(client_.ListLeases().instance, welcome);
  EXPECT_EQ(client_.ListSessions().instance, welcome);
}

TEST_F(LeaseCallsTest, ANameIsTakenWhileItsLeaseLivesAndFreeAtOnceAfterRelease) {
  const auto [lease, chunks] = client_.MustAllocate(DeviceSpec(1, "weights"));
  EXPECT_TRUE(Refused(client_.Allocate({DeviceSpec(1, "weights")}),
                      grpc::StatusCode::ALREADY_EXISTS, v1::REASON_NAME_TAKEN));
  // Names are the user's, not the session's.
  EXPECT_TRUE(Refused(other_.Allocate({DeviceSpec(1, "weights")}), grpc::StatusCode::ALREADY_EXISTS,
                      v1::REASON_NAME_TAKEN));
  ASSERT_TRUE(Worked(client_.Release(lease.lease_id())));
  EXPECT_TRUE(Worked(other_.Allocate({DeviceSpec(1, "weights")})));
}

TEST_F(LeaseCallsTest, AnOpenByNameOrIdGetsTheSameMemory) {
  const auto [lease, chunks] = client_.MustAllocate(HostSpec(8192, "table"));
  const auto opened = other_.Open("table");
  ASSERT_TRUE(Worked(opened));
  EXPECT_EQ(opened.message.lease().lease_id(), lease.lease_id());
  const auto by_name = other_.Chunks(other_.last_tag(), lease.lease_id());
  ASSERT_TRUE(by_name.ok()) << by_name.error().message;
  EXPECT_EQ(FileOf((*by_name)[0]), FileOf(chunks[0]));
  ASSERT_TRUE(Worked(other_.Close(lease.lease_id())));
  ASSERT_TRUE(Worked(other_.Open(lease.lease_id())));
  const auto by_id = other_.Chunks(other_.last_tag(), lease.lease_id());
  ASSERT_TRUE(by_id.ok()) << by_id.error().message;
  EXPECT_EQ(FileOf((*by_id)[0]), FileOf(chunks[0]));
  ASSERT_TRUE(Worked(other_.Open(std::to_string(geteuid()) + "/table")));
}

TEST_F(LeaseCallsTest, WhatDoesNotExistIsNotFoundOrDenied) {
  EXPECT_TRUE(
      Refused(client_.Open("nothing"), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
  EXPECT_TRUE(Refused(client_.Open("4711/nothing"), grpc::StatusCode::PERMISSION_DENIED,
                      v1::REASON_NOT_OPENABLE));
  EXPECT_TRUE(Refused(client_.Open("no-such-user/nothing"), grpc::StatusCode::PERMISSION_DENIED,
                      v1::REASON_NOT_OPENABLE));
  EXPECT_TRUE(
      Refused(client_.Open(4711), grpc::StatusCode::PERMISSION_DENIED, v1::REASON_NOT_OPENABLE));
  EXPECT_TRUE(Refused(client_.Close(4711), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
  EXPECT_TRUE(Refused(client_.Release(4711), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
  EXPECT_TRUE(
      Refused(client_.GetLease(4711), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
  EXPECT_TRUE(
      Refused(client_.GetLease("nothing"), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
  EXPECT_TRUE(Refused(client_.Await(4711), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
}

TEST_F(LeaseCallsTest, AReleasedLeaseLivesWhileAHolderHasItOpen) {
  const auto [lease, chunks] = client_.MustAllocate(DeviceSpec(2 * kMiB, "shared"));
  const std::uint64_t id = lease.lease_id();
  ASSERT_TRUE(Worked(other_.Open("shared")));
  ASSERT_TRUE(other_.Chunks(other_.last_tag(), id).ok());
  const auto released = client_.Release(id);
  ASSERT_TRUE(Worked(released));
  EXPECT_EQ(released.message.state(), v1::LEASE_STATE_RELEASED);
  EXPECT_EQ(released.message.holders(), 1u);
  EXPECT_EQ(StateOf(id), v1::LEASE_STATE_RELEASED);
  EXPECT_TRUE(AddsUp(client_.Node()));
  RawClient third(daemon_.runtime_dir());
  third.Connect();
  EXPECT_FALSE(third.Open(id).ok()) << "nobody new comes in";
  ASSERT_TRUE(Worked(other_.Close(id)));
  EXPECT_TRUE(Refused(other_.Close(id), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
}

TEST_F(LeaseCallsTest, ReleasedMemoryCountsAsReleasingUntilTheLastDescriptorIsClosed) {
  auto [lease, chunks] = client_.MustAllocate(DeviceSpec(64 * kMiB));
  ASSERT_TRUE(Worked(client_.Release(lease.lease_id())));
  EXPECT_TRUE(EventuallyIs(lease.lease_id(), v1::LEASE_STATE_RELEASING));
  const v1::GetNodeResponse node = client_.Node();
  EXPECT_TRUE(AddsUp(node));
  std::uint64_t releasing = 0;
  for (const v1::Gpu& gpu : node.gpus()) releasing += gpu.memory().releasing_bytes();
  EXPECT_EQ(releasing, 64 * kMiB);
  chunks.clear();
  EXPECT_TRUE(Eventually([&] { return IsAllFree(client_.Node()); }));
}

TEST_F(LeaseCallsTest, ARetryWithTheSameRequestIdReturnsTheSameLeaseAndPushesItAgain) {
  const auto first = client_.Allocate({DeviceSpec(2 * kMiB, "once")}, 0, "req-1");
  ASSERT_TRUE(Worked(first));
  const std::uint64_t id = first.message.leases(0).lease_id();
  const std::uint64_t first_tag = client_.last_tag();
  const auto second = client_.Allocate({DeviceSpec(2 * kMiB, "once")}, 0, "req-1");
  ASSERT_TRUE(Worked(second));
  EXPECT_EQ(second.message.leases(0).lease_id(), id);
  const auto first_chunks = client_.Chunks(first_tag, id);
  const auto second_chunks = client_.Chunks(client_.last_tag(), id);
  ASSERT_TRUE(first_chunks.ok() && second_chunks.ok());
  EXPECT_EQ(FileOf((*first_chunks)[0]), FileOf((*second_chunks)[0]));
  EXPECT_EQ(client_.Node().lease_count(), 1u);
  // Another session's request of the same id is another request.
  const auto others = other_.Allocate({DeviceSpec(2 * kMiB)}, 0, "req-1");
  ASSERT_TRUE(Worked(others));
  EXPECT_NE(others.message.leases(0).lease_id(), id);
}

TEST_F(LeaseCallsTest, ManySpecsAreGrantedTogetherOrNotAtAll) {
  std::vector<v1::AllocationSpec> specs;
  for (int i = 0; i < 64; ++i) specs.push_back(DeviceSpec(2 * kMiB, "part" + std::to_string(i)));
  specs[63] = HostSpec(4096, "part63");
  const auto reply = client_.Allocate(specs);
  ASSERT_TRUE(Worked(reply));
  ASSERT_EQ(reply.message.leases_size(), 64);
  std::set<std::uint64_t> ids;
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(reply.message.leases(i).name(), "part" + std::to_string(i));
    ids.insert(reply.message.leases(i).lease_id());
    EXPECT_TRUE(client_.Chunks(client_.last_tag(), reply.message.leases(i).lease_id()).ok());
  }
  EXPECT_EQ(ids.size(), 64u);

  // The last cannot be met: none is.
  std::vector<v1::AllocationSpec> too_much = {DeviceSpec(kMiB), DeviceSpec(kGiB), DeviceSpec(kGiB)};
  too_much.pop_back();
  too_much.push_back(DeviceSpec(960 * kMiB));
  EXPECT_TRUE(
      Refused(other_.Allocate(too_much), grpc::StatusCode::UNAVAILABLE, v1::REASON_MEMORY_SHORT));
  EXPECT_EQ(client_.Node().lease_count(), 64u);
}

TEST_F(LeaseCallsTest, ShortMemoryIsUnavailableAndSaysWhoHoldsIt) {
  const std::string uuid = daemon_.node().uuid_text(0);
  v1::AllocationSpec spec = DeviceSpec(768 * kMiB);
  spec.set_gpu_uuid(uuid);
  const auto [lease, chunks] = client_.MustAllocate(spec);
  EXPECT_EQ(lease.gpu_uuid(), uuid);
  spec.set_size_bytes(512 * kMiB);
  const auto reply = other_.Allocate({spec});
  ASSERT_TRUE(Refused(reply, grpc::StatusCode::UNAVAILABLE, v1::REASON_MEMORY_SHORT));
  EXPECT_EQ(reply.detail.requested_bytes(), 512 * kMiB);
  EXPECT_EQ(reply.detail.available_bytes(), 256 * kMiB);
  ASSERT_EQ(reply.detail.blockers_size(), 1);
  EXPECT_EQ(reply.detail.blockers(0).lease_id(), lease.lease_id());
  EXPECT_EQ(reply.detail.blockers(0).pid(), getpid());
  EXPECT_EQ(reply.detail.blockers(0).size_bytes(), 768 * kMiB);
}

TEST_F(LeaseCallsTest, ListingsComeInPagesOfRisingIds) {
  std::set<std::uint64_t> granted;
  for (int i = 0; i < 25; ++i) {
    granted.insert((i % 2 ? other_ : client_).MustAllocate(DeviceSpec(1)).first.lease_id());
  }
  std::vector<std::uint64_t> listed;
  v1::ListLeasesRequest request;
  request.set_page_size(10);
  int pages = 0;
  do {
    const auto reply = client_.ListLeases(request);
    ASSERT_TRUE(Worked(reply));
    EXPECT_LE(reply.message.leases_size(), 10);
    for (const v1::Lease& lease : reply.message.leases()) listed.push_back(lease.lease_id());
    request.set_page_token(reply.message.next_page_token());
    ++pages;
  } while (!request.page_token().empty() && pages < 10);
  EXPECT_GE(pages, 3);
  EXPECT_TRUE(std::is_sorted(listed.begin(), listed.end()));
  EXPECT_EQ(std::set<std::uint64_t>(listed.begin(), listed.end()), granted);
  EXPECT_EQ(listed.size(), granted.size());

  v1::ListLeasesRequest on_gpu;
  on_gpu.set_gpu_uuid(daemon_.node().uuid_text(1));
  const auto first = client_.ListLeases(on_gpu);
  ASSERT_TRUE(Worked(first));
  for (const v1::Lease& lease : first.message.leases()) {
    EXPECT_EQ(lease.gpu_uuid(), on_gpu.gpu_uuid());
  }
  v1::ListLeasesRequest of_stranger;
  of_stranger.set_uid(4711);
  EXPECT_EQ(client_.ListLeases(of_stranger).message.leases_size(), 0);

  v1::ListSessionsRequest one;
  one.set_page_size(1);
  const auto page = client_.ListSessions(one);
  ASSERT_TRUE(Worked(page));
  ASSERT_EQ(page.message.sessions_size(), 1);
  one.set_page_token(page.message.next_page_token());
  const auto next = client_.ListSessions(one);
  ASSERT_EQ(next.message.sessions_size(), 1);
  EXPECT_GT(next.message.sessions(0).session_id(), page.message.sessions(0).session_id());
}

TEST_F(LeaseCallsTest, ALeaseShowsItsHolders) {
  const auto [lease, chunks] = client_.MustAllocate(DeviceSpec(1, "seen"));
  ASSERT_TRUE(Worked(other_.Open("seen", v1::ACCESS_READ_ONLY)));
  const auto reply = other_.GetLease("seen");
  ASSERT_TRUE(Worked(reply));
  ASSERT_EQ(reply.message.lease().holders_size(), 2);
  for (const v1::Holder& holder : reply.message.lease().holders()) {
    EXPECT_EQ(holder.pid(), getpid());
    EXPECT_EQ(holder.program(), "raw-client");
    EXPECT_EQ(holder.owner(), holder.session_id() == client_.session_id());
    EXPECT_EQ(holder.access(), holder.owner() ? v1::ACCESS_READ_WRITE : v1::ACCESS_READ_ONLY);
  }
}

TEST_F(LeaseCallsTest, TheOwnerMayLetGoAndComeBackWhileAnotherHoldsIt) {
  auto [lease, chunks] = client_.MustAllocate(DeviceSpec(1, "kept"));
  ASSERT_TRUE(Worked(other_.Open("kept")));
  ASSERT_TRUE(other_.Chunks(other_.last_tag(), lease.lease_id()).ok());
  ASSERT_TRUE(Worked(client_.Close(lease.lease_id())));
  EXPECT_EQ(StateOf(lease.lease_id()), v1::LEASE_STATE_LEASED);
  EXPECT_TRUE(Worked(client_.Open("kept")));
}

TEST_F(LeaseCallsTest, AForcedReleaseQuarantinesWhatALivingProcessMayStillMap) {
  if (geteuid() != 0) GTEST_SKIP() << "force is for administrators, and this test's user is none";
  auto [lease, chunks] = client_.MustAllocate(DeviceSpec(32 * kMiB, "forced"));
  RawClient administrator(daemon_.runtime_dir());
  ASSERT_TRUE(Worked(administrator.Release(lease.lease_id(), true)));
  EXPECT_TRUE(EventuallyIs(lease.lease_id(), v1::LEASE_STATE_QUARANTINED));
  v1::GetNodeResponse node = client_.Node();
  EXPECT_TRUE(AddsUp(node));
  std::uint64_t quarantined = 0;
  for (const v1::Gpu& gpu : node.gpus()) quarantined += gpu.memory().quarantined_bytes();
  EXPECT_EQ(quarantined, 32 * kMiB);
  chunks.clear();
  EXPECT_TRUE(Eventually([&] { return IsAllFree(client_.Node()); }));
}

TEST_F(LeaseCallsTest, StatusSaysWhatTheNodeIs) {
  const v1::GetNodeResponse node = client_.Node();
  EXPECT_TRUE(node.simulated());
  EXPECT_FALSE(node.version().empty());
  ASSERT_EQ(node.gpus_size(), 2);
  ASSERT_GE(node.host_size(), 1);
  for (const v1::Gpu& gpu : node.gpus()) {
    EXPECT_EQ(gpu.state(), v1::GPU_STATE_READY);
    EXPECT_EQ(gpu.memory().total_bytes(), kGiB);
    EXPECT_EQ(gpu.capabilities().granularity_bytes(), 2 * kMiB);
    EXPECT_TRUE(gpu.capabilities().posix_fd_export());
  }
  EXPECT_EQ(node.session_count(), 2u);
  EXPECT_GT(node.descriptors_limit(), node.descriptors_used());
  EXPECT_GT(node.descriptors_used(), 0u);
  EXPECT_GT(node.resident_bytes(), 0u);
}

}  // namespace
}  // namespace gpulease::e2e
