// SPDX-License-Identifier: Apache-2.0
//
// A driver call fails in the middle of a lease: nothing of it stays, the error names the step, and
// a retry works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "driver/cuda_abi.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kChunk = 2 * kMiB;

class FailingDriverTest : public ::testing::Test {
 protected:
  explicit FailingDriverTest(const std::string& config = "largest_chunk: \"2MiB\"")
      : daemon_({.simulate = "2x1GiB", .config = config}),
        node_(daemon_.node()),
        client_(daemon_.runtime_dir()) {
    client_.Connect();

    // What is made on first use is made before anything is counted.
    for (int gpu = 0; gpu < 2; ++gpu) {
      const auto warm_up = client_.MustAllocate(On(node_.uuid_text(gpu), 8 * kChunk));
      EXPECT_TRUE(Worked(client_.Release(warm_up.first.lease_id())));
    }
    EXPECT_TRUE(Eventually([&] { return IsAllFree(client_.Node()); }));
    descriptors_ = daemon_.settled_descriptors();
  }
  ~FailingDriverTest() override { node_.ClearFaults(); }
  void Inject(simulated::Fault fault) {
    fault.pid = daemon_.pid();
    const Status injected = node_.InjectFault(fault);
    ASSERT_TRUE(injected.ok()) << injected.error().message;
  }
  static v1::AllocationSpec On(const std::string& uuid, Bytes size) {
    v1::AllocationSpec spec = DeviceSpec(size);
    spec.set_gpu_uuid(uuid);
    return spec;
  }
  void ExpectNoTrace() {
    EXPECT_TRUE(Eventually([&] { return IsAllFree(client_.Node()); }))
        << client_.Node().ShortDebugString();
    EXPECT_EQ(node_.Used(0) + node_.Used(1), 0u);
    EXPECT_TRUE(Eventually([&] { return daemon_.open_descriptors() <= descriptors_; }))
        << daemon_.open_descriptors() << ", before " << descriptors_;
    EXPECT_TRUE(AddsUp(client_.Node()));
  }

  DaemonProcess daemon_;
  simulated::Node node_;
  RawClient client_;
  std::size_t descriptors_ = 0;
};

TEST_F(FailingDriverTest, AnyStepOfAnyChunkMayFailAndNothingStays) {
  for (const char* const step : {"cuMemCreate", "cuMemExportToShareableHandle"}) {
    for (const std::int64_t nth : {1, 2, 5, 8}) {
      Inject({.function = step, .nth = nth, .code = cuda::CUDA_ERROR_UNKNOWN});
      const auto reply = client_.Allocate({DeviceSpec(8 * kChunk, "name")});
      EXPECT_TRUE(Refused(reply, grpc::StatusCode::INTERNAL, v1::REASON_DRIVER))
          << step << ", call " << nth;
      EXPECT_THAT(reply.status.error_message(), HasSubstr(step));
      EXPECT_THAT(reply.status.error_message(), HasSubstr("GPU-"));
      node_.ClearFaults();
      ExpectNoTrace();
      // The name, too, is free.
      const auto retry = client_.Allocate({DeviceSpec(8 * kChunk, "name")});
      ASSERT_TRUE(Worked(retry));
      const std::uint64_t id = retry.message.leases(0).lease_id();
      ASSERT_TRUE(client_.Chunks(client_.last_tag(), id).ok());
      ASSERT_TRUE(Worked(client_.Release(id)));
      ExpectNoTrace();
    }
  }
}

TEST_F(FailingDriverTest, AnyStepOfAGrowthMayFailAndTheLeaseIsAsItWas) {
  v1::AllocationSpec spec = On(node_.uuid_text(0), kChunk);
  spec.set_reserve_bytes(64 * kChunk);
  auto held = client_.MustAllocate(spec);
  const std::uint64_t lease = held.first.lease_id();
  const std::size_t descriptors = daemon_.settled_descriptors();
  for (const char* const step : {"cuMemCreate", "cuMemExportToShareableHandle"}) {
    for (const std::int64_t nth : {1, 2, 4}) {
      Inject({.function = step, .nth = nth, .code = cuda::CUDA_ERROR_UNKNOWN});
      const auto reply = client_.Resize(lease, 5 * kChunk, 1);
      EXPECT_TRUE(Refused(reply, grpc::StatusCode::INTERNAL, v1::REASON_DRIVER))
          << step << ", call " << nth;
      EXPECT_THAT(reply.status.error_message(), HasSubstr(step));
      node_.ClearFaults();
      EXPECT_TRUE(Eventually([&] { return node_.Used(0) == kChunk; }));
      EXPECT_TRUE(Eventually([&] { return daemon_.open_descriptors() <= descriptors; }));
      EXPECT_TRUE(AddsUp(client_.Node()));
      EXPECT_EQ(client_.GetLease(lease).message.lease().size_bytes(), kChunk);
      ASSERT_TRUE(Worked(client_.Resize(lease, 5 * kChunk, 1)));
      EXPECT_EQ(client_.Chunks(client_.last_tag(), lease).value().size(), 4u);
      ASSERT_TRUE(Worked(client_.Resize(lease, kChunk, 1)));
      EXPECT_TRUE(Eventually([&] { return node_.Used(0) == kChunk; }));
    }
  }
  held.second.clear();
  ASSERT_TRUE(Worked(client_.Release(lease)));
  ExpectNoTrace();
}

TEST_F(FailingDriverTest, OneOfManyLeasesThatFailsTakesTheOthersBack) {
  Inject({.function = "cuMemCreate", .nth = 6, .code = cuda::CUDA_ERROR_UNKNOWN});
  const auto reply = client_.Allocate(
      {DeviceSpec(3 * kChunk), HostSpec(4096), DeviceSpec(3 * kChunk), DeviceSpec(3 * kChunk)});
  EXPECT_TRUE(Refused(reply, grpc::StatusCode::INTERNAL, v1::REASON_DRIVER));
  ExpectNoTrace();
}

TEST_F(FailingDriverTest, ARetryOfAFailedRequestIdIsANewRequest) {
  Inject({.function = "cuMemCreate", .nth = 1, .code = cuda::CUDA_ERROR_UNKNOWN});
  EXPECT_FALSE(client_.Allocate({DeviceSpec(kChunk)}, 0, "again").ok());
  EXPECT_TRUE(Worked(client_.Allocate({DeviceSpec(kChunk)}, 0, "again")));
}

TEST_F(FailingDriverTest, AQueuedGrantThatFailsFailsItsAwait) {
  v1::AllocationSpec all = On(node_.uuid_text(0), kGiB);
  auto held = client_.MustAllocate(all);
  const auto queued = client_.Allocate({On(node_.uuid_text(0), 4 * kChunk)}, 600'000);
  ASSERT_TRUE(Worked(queued));
  Inject({.function = "cuMemCreate", .nth = 3, .code = cuda::CUDA_ERROR_UNKNOWN});
  ASSERT_TRUE(Worked(client_.Release(held.first.lease_id())));
  held.second.clear();
  // Whether it had failed before or fails now, the answer is not a grant.
  const auto reply = client_.Await(queued.message.leases(0).lease_id());
  EXPECT_FALSE(reply.ok());
  ExpectNoTrace();
}

class ShortDriverTest : public FailingDriverTest {
 protected:
  explicit ShortDriverTest(const std::string& retry_ms = "500")
      : FailingDriverTest("largest_chunk: \"2MiB\" driver_retry_ms: " + retry_ms) {}
};

class PatientDriverTest : public ShortDriverTest {
 protected:
  PatientDriverTest() : ShortDriverTest("20000") {}
};

TEST_F(PatientDriverTest, APassingShortageOfTheDriverIsRiddenOut) {
  Inject({.function = "cuMemCreate", .nth = 2, .times = 2, .code = cuda::CUDA_ERROR_OUT_OF_MEMORY});
  const auto reply = client_.Allocate({On(node_.uuid_text(0), 4 * kChunk)});
  ASSERT_TRUE(Worked(reply));
  const std::uint64_t id = reply.message.leases(0).lease_id();
  if (reply.message.leases(0).state() == v1::LEASE_STATE_QUEUED) {
    ASSERT_TRUE(Worked(client_.Await(id)));
  }
  const auto chunks = client_.Chunks(client_.last_tag(), id);
  ASSERT_TRUE(chunks.ok()) << chunks.error().message;
  EXPECT_EQ(chunks->size(), 4u);
}

TEST_F(PatientDriverTest, AGrowthRidesAPassingShortageOutAsWell) {
  v1::AllocationSpec spec = On(node_.uuid_text(0), kChunk);
  spec.set_reserve_bytes(64 * kChunk);
  const auto held = client_.MustAllocate(spec);
  const std::uint64_t lease = held.first.lease_id();
  Inject({.function = "cuMemCreate", .nth = 2, .times = 2, .code = cuda::CUDA_ERROR_OUT_OF_MEMORY});
  const auto reply = client_.Resize(lease, 4 * kChunk, 1);
  ASSERT_TRUE(Worked(reply));
  v1::Lease grown = reply.message.lease();
  if (reply.message.growth_id() != 0) {
    const auto awaited = client_.Await(reply.message.growth_id());
    ASSERT_TRUE(Worked(awaited));
    grown = awaited.message.leases(0);
  }
  EXPECT_EQ(grown.lease_id(), lease);
  EXPECT_EQ(grown.chunks_size(), 4);
  EXPECT_EQ(client_.Chunks(client_.last_tag(), lease).value().size(), 3u);
}

TEST_F(ShortDriverTest, ALastingShortageOfTheDriverFailsWithBothNumbers) {
  Inject({.function = "cuMemCreate", .times = 0, .gpu = 0, .code = cuda::CUDA_ERROR_OUT_OF_MEMORY});
  const auto reply = client_.Allocate({On(node_.uuid_text(0), 4 * kChunk)});
  auto ended = reply;
  if (reply.ok()) ended = client_.Await(reply.message.leases(0).lease_id());
  ASSERT_TRUE(Refused(ended, grpc::StatusCode::RESOURCE_EXHAUSTED, v1::REASON_DRIVER_MEMORY_SHORT));
  EXPECT_THAT(ended.status.error_message(), HasSubstr("1.0 GiB")) << "what the books have";
  EXPECT_EQ(ended.detail.requested_bytes(), 4 * kChunk);
  // The other GPU does not mind.
  EXPECT_TRUE(Worked(client_.Allocate({On(node_.uuid_text(1), 4 * kChunk)})));
  node_.ClearFaults();
  EXPECT_TRUE(Worked(client_.Allocate({On(node_.uuid_text(0), kGiB)})));
}

TEST_F(PatientDriverTest, WhoLeavesDuringTheRetriesLeavesNothing) {
  Inject({.function = "cuMemCreate", .times = 0, .gpu = 0, .code = cuda::CUDA_ERROR_OUT_OF_MEMORY});
  const auto reply = client_.Allocate({On(node_.uuid_text(0), 4 * kChunk)}, 600'000);
  ASSERT_TRUE(Worked(reply));
  ASSERT_EQ(reply.message.leases(0).state(), v1::LEASE_STATE_QUEUED);
  EXPECT_TRUE(Eventually([&] { return node_.FaultsMet() > 1; }));
  ASSERT_TRUE(Worked(client_.Release(reply.message.leases(0).lease_id())));
  ExpectNoTrace();
}

}  // namespace
}  // namespace gpulease::e2e
