// SPDX-License-Identifier: Apache-2.0
//
// Leases that are filled once for many, that outlive their owner, and what may still be leased.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/raw_client.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;
using Stub = v1::LeaseService::StubInterface;

class ContentsTest : public ::testing::Test {
 protected:
  ContentsTest()
      : daemon_({.simulate = "1x1GiB",
                 .config = "longest_linger_ms: 60000\n"
                           "lasting_bytes_per_user: \"64MiB\""}),
        client_(daemon_.runtime_dir()),
        reader_(daemon_.runtime_dir()) {
    client_.Connect();
    reader_.Connect();
  }
  static v1::AllocationSpec Loading(const std::string& name) {
    v1::AllocationSpec spec = DeviceSpec(4 * kMiB, name);
    spec.set_loading(true);
    return spec;
  }
  Reply<v1::SealResponse> Seal(RawClient& client, std::uint64_t lease, const std::string& tag,
                               const v1::Directory& directory = {}) {
    v1::SealRequest request;
    request.set_session_id(client.session_id());
    request.set_lease_id(lease);
    request.set_content_tag(tag);
    *request.mutable_directory() = directory;
    return client.Call<v1::SealRequest, v1::SealResponse>(&Stub::Seal, request);
  }
  Reply<v1::AwaitSealedResponse> AwaitSealed(
      RawClient& client, const std::string& name,
      std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    v1::AwaitSealedRequest request;
    request.set_name(name);
    return client.Call<v1::AwaitSealedRequest, v1::AwaitSealedResponse>(&Stub::AwaitSealed, request,
                                                                        timeout);
  }
  Reply<v1::GetDirectoryResponse> Directory(RawClient& client, const std::string& name) {
    v1::GetDirectoryRequest request;
    request.set_name(name);
    return client.Call<v1::GetDirectoryRequest, v1::GetDirectoryResponse>(&Stub::GetDirectory,
                                                                          request);
  }
  Reply<v1::ClaimResponse> Claim(RawClient& client, const std::string& name) {
    v1::ClaimRequest request;
    request.set_session_id(client.session_id());
    request.set_push_tag(77);
    request.set_name(name);
    return client.Call<v1::ClaimRequest, v1::ClaimResponse>(&Stub::Claim, request);
  }

  DaemonProcess daemon_;
  RawClient client_, reader_;
};

TEST_F(ContentsTest, ReadersWaitForTheSealAndFindThingsByTheirNames) {
  const auto [lease, chunks] = client_.MustAllocate(Loading("weights"));
  EXPECT_TRUE(lease.loading());
  EXPECT_TRUE(Refused(reader_.Open("weights", v1::ACCESS_READ_ONLY),
                      grpc::StatusCode::FAILED_PRECONDITION, v1::REASON_NOT_SEALED));
  EXPECT_TRUE(Refused(reader_.Allocate({Loading("weights")}), grpc::StatusCode::ALREADY_EXISTS,
                      v1::REASON_NAME_TAKEN));
  EXPECT_EQ(AwaitSealed(reader_, "weights", std::chrono::milliseconds(50)).status.error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  Reply<v1::AwaitSealedResponse> awaited;
  std::thread waits([&] { awaited = AwaitSealed(reader_, "weights"); });
  v1::Directory directory;
  v1::DirectoryEntry& entry = *directory.add_entries();
  entry.set_name("layer.0");
  entry.set_offset_bytes(2 * kMiB);
  entry.set_size_bytes(kMiB);
  entry.add_shape(512);
  entry.add_shape(1024);
  entry.set_dtype("float16");
  const auto sealed = Seal(client_, lease.lease_id(), "v1", directory);
  ASSERT_TRUE(Worked(sealed));
  waits.join();
  ASSERT_TRUE(Worked(awaited));
  EXPECT_EQ(awaited.message.lease().content_tag(), "v1");
  EXPECT_TRUE(Worked(AwaitSealed(reader_, "weights"))) << "at once";
  const auto opened = reader_.Open("weights", v1::ACCESS_READ_ONLY);
  ASSERT_TRUE(Worked(opened));
  EXPECT_TRUE(opened.message.lease().sealed() && opened.message.lease().has_directory());
  EXPECT_TRUE(
      Refused(reader_.Open("weights"), grpc::StatusCode::FAILED_PRECONDITION, v1::REASON_SEALED));
  const auto found = Directory(reader_, "weights");
  ASSERT_TRUE(Worked(found));
  EXPECT_EQ(found.message.directory().SerializeAsString(), directory.SerializeAsString());
  EXPECT_EQ(found.message.generation(), lease.generation());
}

TEST_F(ContentsTest, ADirectoryThatMakesNoSenseIsRefusedAndNothingIsSealed) {
  const auto [lease, chunks] = client_.MustAllocate(Loading("weights"));
  v1::Directory outside, twice, nameless, steering;
  outside.add_entries()->set_name("x");
  outside.mutable_entries(0)->set_offset_bytes(~std::uint64_t{0});
  outside.mutable_entries(0)->set_size_bytes(2);
  twice.add_entries()->set_name("x");
  twice.add_entries()->set_name("x");
  nameless.add_entries();
  steering.add_entries()->set_name("\x1b[31m");
  for (const v1::Directory& directory : {outside, twice, nameless, steering}) {
    const auto refused = Seal(client_, lease.lease_id(), "", directory);
    EXPECT_TRUE(Refused(refused, grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD));
    EXPECT_THAT(refused.status.error_message(), HasSubstr("directory.entries["));
  }
  EXPECT_TRUE(Refused(Seal(client_, lease.lease_id(), "a\nb"), grpc::StatusCode::INVALID_ARGUMENT,
                      v1::REASON_BAD_FIELD));
  EXPECT_TRUE(Refused(Seal(reader_, lease.lease_id(), "v"), grpc::StatusCode::NOT_FOUND,
                      v1::REASON_NOT_OPENABLE));
  EXPECT_FALSE(client_.GetLease("weights").message.lease().sealed());
}

TEST_F(ContentsTest, WhoWaitsForAFillerThatDiesIsToldAtOnceAndMayFillIt) {
  ClientProcess filler(daemon_.runtime_dir());
  filler.Connect();
  ASSERT_NE(ClientProcess::LeaseOf(filler.Ask("device 4194304 name=weights loading")), 0u);
  Reply<v1::AwaitSealedResponse> awaited;
  std::thread waits([&] { awaited = AwaitSealed(reader_, "weights"); });
  ASSERT_TRUE(Eventually([&] { return client_.GetLease("weights").message.lease().loading(); }));
  filler.Kill();
  waits.join();
  // Over before the wait began, or in it.
  EXPECT_TRUE(awaited.detail.reason() == v1::REASON_NOT_SEALED ||
              awaited.detail.reason() == v1::REASON_NOT_OPENABLE)
      << awaited.status.error_message();
  EXPECT_TRUE(Worked(reader_.Allocate({Loading("weights")})));
}

TEST_F(ContentsTest, ALastingLeaseIsFoundByNameAfterItsOwnersDeathClaimedAndReleased) {
  {
    ClientProcess owner(daemon_.runtime_dir());
    owner.Connect();
    ASSERT_NE(ClientProcess::LeaseOf(owner.Ask("device 4194304 name=cache linger=50000")), 0u);
    owner.Kill();
  }
  ASSERT_TRUE(Eventually([&] { return client_.GetLease("cache").message.lease().orphan(); }));
  EXPECT_GT(client_.GetLease("cache").message.lease().ends_in_ms(), 0);
  v1::ListLeasesRequest orphans;
  orphans.set_orphans(true);
  EXPECT_EQ(client_.ListLeases(orphans).message.leases_size(), 1);
  const auto claimed = Claim(client_, "cache");
  ASSERT_TRUE(Worked(claimed));
  EXPECT_TRUE(client_.Chunks(77, claimed.message.lease().lease_id()).ok());
  EXPECT_EQ(client_.ListLeases(orphans).message.leases_size(), 0);
  EXPECT_EQ(Claim(reader_, "cache").status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(Worked(client_.Release(claimed.message.lease().lease_id())));
}

TEST_F(ContentsTest, LimitsOnWhatLastsAreTheConfigurations) {
  v1::AllocationSpec spec = DeviceSpec(4 * kMiB, "cache");
  spec.set_persistent(true);
  EXPECT_TRUE(
      Refused(client_.Allocate({spec}), grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD));
  spec.set_persistent(false);
  spec.set_linger_ms(60'000);
  spec.set_size_bytes(128 * kMiB);
  EXPECT_TRUE(Refused(client_.Allocate({spec}), grpc::StatusCode::RESOURCE_EXHAUSTED,
                      v1::REASON_SESSION_LIMIT));
  spec.set_size_bytes(64 * kMiB);
  EXPECT_TRUE(Worked(client_.Allocate({spec})));
}

TEST_F(ContentsTest, TheBudgetSaysWhatMayStillBeLeased) {
  const auto [lease, chunks] = client_.MustAllocate(DeviceSpec(256 * kMiB));
  grpc::ClientContext context;
  v1::GetBudgetResponse budget;
  ASSERT_TRUE(client_.nodes().GetBudget(&context, {}, &budget).ok());
  ASSERT_GE(budget.budgets_size(), 2);
  EXPECT_EQ(budget.budgets(0).leasable_bytes(), 768 * kMiB);
  EXPECT_EQ(budget.budgets(0).mine_bytes(), 256 * kMiB);
  EXPECT_EQ(budget.budgets(0).holders(0).lease_id(), lease.lease_id());
  EXPECT_EQ(budget.lasting_left_bytes(), 64 * kMiB);
  EXPECT_TRUE(Worked(client_.Allocate({DeviceSpec(budget.budgets(0).leasable_bytes())})));
}

TEST_F(ContentsTest, AUsageSaysWhichMemoryItIs) {
  v1::AllocationSpec spec;
  spec.set_size_bytes(2 * kMiB);
  spec.set_usage(v1::USAGE_HINT_CPU_STREAM);
  const auto stream = client_.Allocate({spec});
  ASSERT_TRUE(Worked(stream));
  EXPECT_EQ(stream.message.leases(0).kind(), v1::MEMORY_KIND_HOST);
  EXPECT_EQ(stream.message.leases(0).page_size(), v1::PAGE_SIZE_SMALL);
  spec.set_usage(v1::USAGE_HINT_COMPUTE);
  EXPECT_EQ(client_.Allocate({spec}).message.leases(0).kind(), v1::MEMORY_KIND_DEVICE);
  spec.set_usage(static_cast<v1::UsageHint>(99));
  EXPECT_TRUE(
      Refused(client_.Allocate({spec}), grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD));
}

}  // namespace
}  // namespace gpulease::e2e
