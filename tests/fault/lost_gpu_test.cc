// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/watch_stream.h"

namespace gpulease::e2e {
namespace {

class LostGpuTest : public ::testing::Test {
 protected:
  LostGpuTest()
      : daemon_({.simulate = "2x1GiB"}), node_(daemon_.node()), client_(daemon_.runtime_dir()) {
    client_.Connect();
  }
  ~LostGpuTest() override { node_.ClearFaults(); }
  v1::AllocationSpec On(int gpu, Bytes size) {
    v1::AllocationSpec spec = DeviceSpec(size);
    spec.set_gpu_uuid(node_.uuid_text(gpu));
    return spec;
  }
  bool EventuallyIs(v1::GpuState state) {
    return Eventually([&] { return client_.Node().gpus(0).state() == state; });
  }

  DaemonProcess daemon_;
  simulated::Node node_;
  RawClient client_;
};

TEST_F(LostGpuTest, ItsLeasesEndAndTheOtherGpuServesOn) {
  auto [lost, lost_chunks] = client_.MustAllocate(On(0, 64 * kMiB));
  auto [kept, kept_chunks] = client_.MustAllocate(On(1, 64 * kMiB));
  WatchStream watch(client_, client_.session_id());
  ASSERT_TRUE(watch.Next(v1::Event::TYPE_READY));
  ASSERT_TRUE(node_.InjectFault({.gpu = 0, .action = simulated::FaultAction::kGpuLost}).ok());
  ASSERT_TRUE(EventuallyIs(v1::GPU_STATE_LOST));
  const auto told = watch.Next(v1::Event::TYPE_GPU_STATE);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->gpu_uuid(), node_.uuid_text(0));
  const auto over = watch.Next(v1::Event::TYPE_DEVICE_LOST);
  ASSERT_TRUE(over);
  EXPECT_EQ(over->lease_id(), lost.lease_id());
  const v1::GetNodeResponse node = client_.Node();
  EXPECT_THAT(node.gpus(0).message(), ::testing::HasSubstr("GPU is lost"));
  EXPECT_EQ(node.gpus(0).memory().lease_count(), 0u);
  EXPECT_EQ(node.gpus(1).state(), v1::GPU_STATE_READY);
  EXPECT_TRUE(AddsUp(node));
  for (const grpc::StatusCode code : {client_.Release(lost.lease_id()).status.error_code(),
                                      client_.Close(lost.lease_id()).status.error_code()})
    EXPECT_EQ(code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Refused(client_.Open(lost.lease_id()), grpc::StatusCode::UNAVAILABLE,
                      v1::REASON_DEVICE_LOST));
  EXPECT_TRUE(Refused(client_.Allocate({On(0, 2 * kMiB)}), grpc::StatusCode::UNAVAILABLE,
                      v1::REASON_GPU_UNAVAILABLE));
  EXPECT_TRUE(Worked(client_.Allocate({On(1, 2 * kMiB)})));
  // Who does not mind which gets the other.
  const auto any = client_.Allocate({DeviceSpec(2 * kMiB)});
  ASSERT_TRUE(Worked(any));
  EXPECT_EQ(any.message.leases(0).gpu_uuid(), node_.uuid_text(1));
  EXPECT_TRUE(Worked(client_.Release(kept.lease_id())));
}

TEST_F(LostGpuTest, AFatalXidLosesTheGpuAndAnotherDoesNot) {
  auto [lease, chunks] = client_.MustAllocate(On(0, 64 * kMiB));
  auto [kept, kept_chunks] = client_.MustAllocate(On(1, 64 * kMiB));
  WatchStream watch(client_, client_.session_id());
  ASSERT_TRUE(watch.Next(v1::Event::TYPE_READY));
  node_.RaiseXid(1, 31);  // one application's fault
  node_.RaiseXid(0, 79);
  const auto over = watch.Next(v1::Event::TYPE_DEVICE_LOST);
  ASSERT_TRUE(over);
  EXPECT_EQ(over->lease_id(), lease.lease_id());
  EXPECT_THAT(over->message(), ::testing::HasSubstr("Xid 79"));
  EXPECT_EQ(client_.Node().gpus(0).state(), v1::GPU_STATE_LOST);
  EXPECT_EQ(client_.Node().gpus(1).state(), v1::GPU_STATE_READY);
}

TEST_F(LostGpuTest, WhoWaitsForItIsToldAtOnceWhyItEnds) {
  auto [lease, chunks] = client_.MustAllocate(On(0, 900 * kMiB));
  auto [kept, kept_chunks] = client_.MustAllocate(On(1, 64 * kMiB));
  RawClient waiter(daemon_.runtime_dir());
  waiter.Connect();
  const auto queued = waiter.Allocate({On(0, 512 * kMiB)}, /*wait_ms=*/3'600'000);
  ASSERT_TRUE(Worked(queued));
  node_.RaiseXid(0, 79);
  EXPECT_TRUE(Refused(waiter.Await(queued.message.leases(0).lease_id()),
                      grpc::StatusCode::UNAVAILABLE, v1::REASON_GPU_UNAVAILABLE));
}

TEST_F(LostGpuTest, ADriverCallThatHangsThereKeepsNobodyElseWaiting) {
  auto [lease, chunks] = client_.MustAllocate(On(0, 64 * kMiB));
  ASSERT_TRUE(node_
                  .InjectFault({.function = "nvmlDeviceGetMemoryInfo_v2",
                                .pid = daemon_.pid(),
                                .gpu = 0,
                                .action = simulated::FaultAction::kBlock})
                  .ok());
  ASSERT_TRUE(Worked(client_.Release(lease.lease_id())));
  ASSERT_TRUE(Eventually([&] { return node_.FaultsMet() > 0; }));
  node_.RaiseXid(0, 79);
  EXPECT_TRUE(EventuallyIs(v1::GPU_STATE_LOST));
  EXPECT_TRUE(Worked(client_.Allocate({On(1, 2 * kMiB)})));
}

TEST_F(LostGpuTest, AGpuLostInTheMiddleOfAGrantRefusesIt) {
  ASSERT_TRUE(node_
                  .InjectFault({.function = "cuMemCreate",
                                .pid = daemon_.pid(),
                                .gpu = 0,
                                .action = simulated::FaultAction::kGpuLost})
                  .ok());
  const auto reply = client_.Allocate({On(0, 2 * kMiB)});
  EXPECT_TRUE(Refused(reply, grpc::StatusCode::UNAVAILABLE, v1::REASON_GPU_UNAVAILABLE));
  EXPECT_TRUE(Worked(client_.Allocate({On(1, 2 * kMiB)})));
}

TEST_F(LostGpuTest, NvmlThatFailsIsNotBelievedToShowFreeMemory) {
  auto [lease, chunks] = client_.MustAllocate(On(0, 768 * kMiB));
  ASSERT_TRUE(node_
                  .InjectFault({.function = "nvmlDeviceGetMemoryInfo_v2",
                                .times = 0,
                                .pid = daemon_.pid(),
                                .gpu = 0,
                                .code = 999})  // NVML_ERROR_UNKNOWN
                  .ok());
  ASSERT_TRUE(Worked(client_.Release(lease.lease_id())));
  EXPECT_TRUE(EventuallyIs(v1::GPU_STATE_UNRESPONSIVE)) << "and not lost";
  EXPECT_FALSE(client_.Allocate({On(0, 512 * kMiB)}).ok());
  EXPECT_EQ(client_.Node().gpus(0).memory().free_bytes(), 256 * kMiB);
  EXPECT_TRUE(AddsUp(client_.Node()));
  chunks.clear();
  node_.ClearFaults();
  EXPECT_TRUE(Eventually([&] { return client_.Allocate({On(0, 512 * kMiB)}).ok(); }));
}

}  // namespace
}  // namespace gpulease::e2e
