// SPDX-License-Identifier: Apache-2.0
//
// A driver call that does not return stops its own GPU, and nothing else.
#include <gtest/gtest.h>

#include <thread>

#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

class BlockedDriverTest : public ::testing::TestWithParam<const char*> {
 protected:
  BlockedDriverTest()
      : daemon_({.simulate = "2x1GiB"}), node_(daemon_.node()), client_(daemon_.runtime_dir()) {
    client_.Connect();
  }
  ~BlockedDriverTest() override {
    node_.ClearFaults();
    if (stuck_.joinable()) stuck_.join();
  }
  v1::AllocationSpec On(int gpu, Bytes size) {
    v1::AllocationSpec spec = DeviceSpec(size);
    spec.set_gpu_uuid(node_.uuid_text(gpu));
    return spec;
  }
  // A call of GPU 0 blocks from here on, in a request or in what watches the GPU.
  void Block() {
    const Status injected = node_.InjectFault({.function = GetParam(),
                                               .times = 0,
                                               .pid = daemon_.pid(),
                                               .gpu = 0,
                                               .action = simulated::FaultAction::kBlock});
    ASSERT_TRUE(injected.ok()) << injected.error().message;
    stuck_ = std::thread([this] {
      RawClient victim(daemon_.runtime_dir());
      victim.Connect();
      static_cast<void>(victim.Allocate({On(0, 2 * kMiB)}).ok());
    });
    // NVML is asked now and then while somebody looks.
    EXPECT_TRUE(Eventually([&] {
      static_cast<void>(client_.GetNode().ok());
      return node_.FaultsMet() > 0;
    }));
  }

  DaemonProcess daemon_;
  simulated::Node node_;
  RawClient client_;
  std::thread stuck_;
};

INSTANTIATE_TEST_SUITE_P(, BlockedDriverTest,
                         ::testing::Values("cuMemCreate", "cuMemExportToShareableHandle",
                                           "nvmlDeviceGetMemoryInfo_v2"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(BlockedDriverTest, TheRestOfTheNodeIsServed) {
  const auto [kept, chunks] = client_.MustAllocate(On(0, 64 * kMiB));
  Block();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(Worked(client_.GetNode()));
  const auto other = client_.Allocate({On(1, 2 * kMiB)});
  ASSERT_TRUE(Worked(other));
  EXPECT_EQ(other.message.leases(0).state(), v1::LEASE_STATE_OFFERED);
  EXPECT_TRUE(client_.Chunks(client_.last_tag(), other.message.leases(0).lease_id()).ok());
  EXPECT_TRUE(Worked(client_.Allocate({HostSpec(4096)})));
  EXPECT_TRUE(Worked(client_.Open(kept.lease_id()))) << "what is leased there can be opened";
  EXPECT_TRUE(Worked(client_.Release(kept.lease_id())));
  EXPECT_TRUE(Worked(client_.Release(other.message.leases(0).lease_id())));
  RawClient late(daemon_.runtime_dir());
  late.Connect();
  // A request to the blocked GPU is answered, with its place.
  const auto queued = late.Allocate({On(0, 2 * kMiB)}, 600'000);
  ASSERT_TRUE(Worked(queued));
  EXPECT_EQ(queued.message.leases(0).state(), v1::LEASE_STATE_QUEUED);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_TRUE(AddsUp(client_.Node()));
  node_.ClearFaults();
  EXPECT_TRUE(Worked(late.Await(queued.message.leases(0).lease_id())));
}

TEST_P(BlockedDriverTest, AStopDoesNotWaitForIt) {
  Block();
  EXPECT_EQ(daemon_.Stop(std::chrono::seconds(2)), 0);
}

TEST(UnresponsiveGpuTest, AGpuWhoseCallDoesNotReturnIsShownAsSuchAndComesBack) {
  DaemonProcess daemon({.simulate = "2x1GiB"});
  simulated::Node node = daemon.node();
  RawClient client(daemon.runtime_dir());
  client.Connect();
  ASSERT_TRUE(node.InjectFault({.function = "nvmlDeviceGetMemoryInfo_v2",
                                .times = 0,
                                .pid = daemon.pid(),
                                .gpu = 0,
                                .action = simulated::FaultAction::kBlock})
                  .ok());
  EXPECT_TRUE(
      Eventually([&] { return client.Node().gpus(0).state() == v1::GPU_STATE_UNRESPONSIVE; }));
  EXPECT_FALSE(client.Node().gpus(0).message().empty());
  EXPECT_EQ(client.Node().gpus(1).state(), v1::GPU_STATE_READY);
  v1::AllocationSpec spec = DeviceSpec(2 * kMiB);
  spec.set_gpu_uuid(node.uuid_text(0));
  EXPECT_TRUE(
      Refused(client.Allocate({spec}), grpc::StatusCode::UNAVAILABLE, v1::REASON_GPU_UNAVAILABLE));
  node.ClearFaults();
  EXPECT_TRUE(Eventually([&] { return client.Node().gpus(0).state() == v1::GPU_STATE_READY; }));
  EXPECT_TRUE(Worked(client.Allocate({spec})));
}

}  // namespace
}  // namespace gpulease::e2e
