// SPDX-License-Identifier: Apache-2.0
//
// Memory with IPC handles is a process's own, which is killed here, and fails at every step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "driver/cuda_abi.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/ipc_host_process.h"
#include "tests/e2e/keeper_process.h"
#include "tests/e2e/watch_stream.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr Bytes kBlock = 8 * kMiB;

class IpcHostTest : public ::testing::Test {
 protected:
  explicit IpcHostTest(const std::string& config = "largest_chunk: \"2MiB\"")
      : daemon_({.simulate = "2x1GiB", .config = config}),
        node_(daemon_.node()),
        client_(daemon_.runtime_dir()) {
    client_.Connect();
    // What is made on first use is made before anything is counted.
    for (int gpu = 0; gpu < 2; ++gpu) {
      // What is received is closed at once: it would keep the block.
      const v1::Lease warm_up = client_.MustAllocate(WithHandle(gpu)).first;
      EXPECT_TRUE(Worked(client_.Release(warm_up.lease_id())));
    }
    ExpectAllGone();
    descriptors_ = daemon_.settled_descriptors();
  }
  ~IpcHostTest() override {
    node_.ClearFaults();
    if (!daemon_.running()) return;
    const auto listed = client_.ListLeases();
    for (const v1::Lease& lease : listed.message.leases())
      static_cast<void>(client_.Release(lease.lease_id()).ok());
    EXPECT_TRUE(Eventually([&] { return Hosts().empty(); }));
  }
  v1::AllocationSpec WithHandle(int gpu, const std::string& name = "") {
    v1::AllocationSpec spec = DeviceSpec(kBlock, name);
    spec.set_gpu_uuid(node_.uuid_text(gpu));
    spec.set_ipc_handle(true);
    return spec;
  }
  std::vector<pid_t> Hosts() { return IpcHosts(daemon_.runtime_dir()); }
  pid_t HostOf(int gpu) {
    const std::vector<pid_t> hosts = IpcHosts(daemon_.runtime_dir(), node_.uuid_text(gpu));
    EXPECT_THAT(hosts, SizeIs(1));
    return hosts.empty() ? 0 : hosts.front();
  }
  void ExpectAllGone() {
    EXPECT_TRUE(Eventually([&] { return IsAllFree(client_.Node()); }))
        << client_.Node().ShortDebugString();
    // What a request that failed had made already is the host's to free.
    EXPECT_TRUE(Eventually([&] { return node_.Used(0) + node_.Used(1) == 0; }));
    EXPECT_TRUE(AddsUp(client_.Node()));
    EXPECT_TRUE(Eventually([&] { return Hosts().empty(); })) << "the last block is gone";
  }
  void ExpectNoTrace() {
    ExpectAllGone();
    EXPECT_TRUE(Eventually([&] { return daemon_.open_descriptors() <= descriptors_; }))
        << daemon_.open_descriptors() << ", before " << descriptors_;
  }

  DaemonProcess daemon_;
  simulated::Node node_;
  RawClient client_;
  std::size_t descriptors_ = 0;
};

TEST_F(IpcHostTest, HandleOffsetAndSizeComeTogetherAndNoTwoShareABlock) {
  auto [first, first_chunks] = client_.MustAllocate(WithHandle(0, "first"));
  auto [second, second_chunks] = client_.MustAllocate(WithHandle(0));
  for (const v1::Lease& lease : {first, second}) {
    EXPECT_TRUE(lease.ipc());
    EXPECT_EQ(lease.ipc_handle().size(), 64u);
    EXPECT_EQ(lease.ipc_offset_bytes(), 0u);
    EXPECT_EQ(lease.size_bytes(), kBlock);
    EXPECT_EQ(lease.chunks_size(), 1) << "though larger than largest_chunk";
  }
  EXPECT_NE(first.ipc_handle(), second.ipc_handle());
  EXPECT_THAT(Hosts(), SizeIs(1));
  RawClient other(daemon_.runtime_dir());
  other.Connect();
  const auto opened = other.Open(first.lease_id(), v1::ACCESS_READ_ONLY);
  ASSERT_TRUE(Worked(opened));
  EXPECT_EQ(opened.message.lease().ipc_handle(), first.ipc_handle());
  // Who looks and does not hold it is told that it is there, and not how to write to it.
  const auto seen = other.GetLease(second.lease_id());
  ASSERT_TRUE(Worked(seen));
  EXPECT_TRUE(seen.message.lease().ipc());
  EXPECT_EQ(seen.message.lease().ipc_handle(), "");
  EXPECT_TRUE(Worked(other.Close(first.lease_id())));
  const auto plain = client_.MustAllocate(DeviceSpec(kBlock));
  EXPECT_FALSE(plain.first.ipc());
  EXPECT_EQ(plain.first.ipc_handle(), "");
}

TEST_F(IpcHostTest, KilledItEndsItsLeasesAndNoOthers) {
  auto [lost, lost_chunks] = client_.MustAllocate(WithHandle(0, "lost"));
  auto [elsewhere, elsewhere_chunks] = client_.MustAllocate(WithHandle(1));
  v1::AllocationSpec on_same = DeviceSpec(kBlock);
  on_same.set_gpu_uuid(node_.uuid_text(0));
  auto [plain, plain_chunks] = client_.MustAllocate(on_same);
  const pid_t host = HostOf(0);
  WatchStream watch(client_, client_.session_id());
  ASSERT_TRUE(watch.Next(v1::Event::TYPE_READY));
  ASSERT_EQ(kill(host, SIGKILL), 0);
  const auto told = watch.Next(v1::Event::TYPE_DEVICE_LOST);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->lease_id(), lost.lease_id());
  EXPECT_THAT(told->message(), HasSubstr("gpulease-ipc-host"));
  EXPECT_TRUE(Refused(client_.Open(lost.lease_id()), grpc::StatusCode::UNAVAILABLE,
                      v1::REASON_DEVICE_LOST));
  for (const std::uint64_t id : {elsewhere.lease_id(), plain.lease_id()}) {
    const auto lives = client_.GetLease(id);
    ASSERT_TRUE(Worked(lives));
    EXPECT_EQ(lives.message.lease().state(), v1::LEASE_STATE_LEASED);
  }
  // The name is free, and another process has the next.
  auto [next, next_chunks] = client_.MustAllocate(WithHandle(0, "lost"));
  EXPECT_NE(HostOf(0), host);
  EXPECT_NE(next.ipc_handle(), lost.ipc_handle());
  lost_chunks.clear();
  elsewhere_chunks.clear();
  plain_chunks.clear();
  next_chunks.clear();
  for (const std::uint64_t id : {elsewhere.lease_id(), plain.lease_id(), next.lease_id()})
    EXPECT_TRUE(Worked(client_.Release(id)));
  ExpectNoTrace();
}

TEST_F(IpcHostTest, AnyStepMayFailAndNothingStays) {
  for (const char* const step : {"cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc",
                                 "cuMemsetD8", "cuMemGetAddressRange", "cuIpcGetMemHandle"}) {
    for (const bool first : {true, false}) {
      std::optional<v1::Lease> before;
      if (!first) before = client_.MustAllocate(WithHandle(0)).first;
      const bool starting = std::string_view(step).starts_with("cuDevicePrimary") ||
                            std::string_view(step).starts_with("cuCtx");
      if (!first && starting) {
        // The host has its context already.
        EXPECT_TRUE(Worked(client_.Release(before->lease_id())));
        ExpectNoTrace();
        continue;
      }
      // The host alone makes these calls.
      ASSERT_TRUE(node_.InjectFault({.function = step, .code = cuda::CUDA_ERROR_UNKNOWN}).ok());
      const auto reply = client_.Allocate({WithHandle(0, "name")});
      EXPECT_TRUE(Refused(reply, grpc::StatusCode::INTERNAL, v1::REASON_DRIVER)) << step;
      EXPECT_THAT(reply.status.error_message(), HasSubstr(step));
      EXPECT_THAT(reply.status.error_message(), HasSubstr("GPU-"));
      node_.ClearFaults();
      if (before) {
        EXPECT_TRUE(Worked(client_.GetLease(before->lease_id()))) << "what was there stays";
        EXPECT_TRUE(Worked(client_.Release(before->lease_id())));
      }
      ExpectNoTrace();
      const v1::Lease retry = client_.MustAllocate(WithHandle(0, "name")).first;
      EXPECT_TRUE(Worked(client_.Release(retry.lease_id())));
      ExpectNoTrace();
    }
  }
}

TEST_F(IpcHostTest, OneOfARequestThatFailsTakesTheOthersBack) {
  ASSERT_TRUE(node_.InjectFault({.function = "cuIpcGetMemHandle", .nth = 3, .code = 999}).ok());
  const auto reply =
      client_.Allocate({WithHandle(0), WithHandle(1), DeviceSpec(kBlock), WithHandle(0)});
  EXPECT_TRUE(Refused(reply, grpc::StatusCode::INTERNAL, v1::REASON_DRIVER));
  node_.ClearFaults();
  ExpectNoTrace();
}

TEST_F(IpcHostTest, ADriverThatIsShortOfMemoryForAMomentIsAskedAgain) {
  ASSERT_TRUE(
      node_
          .InjectFault({.function = "cuMemAlloc", .gpu = 0, .code = cuda::CUDA_ERROR_OUT_OF_MEMORY})
          .ok());
  auto [lease, chunks] = client_.MustAllocate(WithHandle(0));
  EXPECT_EQ(node_.FaultsMet(), 1u);
  ASSERT_TRUE(node_
                  .InjectFault({.function = "cuMemAlloc",
                                .times = 0,
                                .gpu = 0,
                                .code = cuda::CUDA_ERROR_OUT_OF_MEMORY})
                  .ok());
  const auto reply = client_.Allocate({WithHandle(0)});
  EXPECT_FALSE(reply.ok());
  EXPECT_THAT(reply.status.error_message(), HasSubstr("cuMemAlloc"));
  node_.ClearFaults();
  chunks.clear();
  EXPECT_TRUE(Worked(client_.Release(lease.lease_id())));
  ExpectNoTrace();
}

TEST_F(IpcHostTest, ItsOwnersDeathGivesTheBlockBackAndEndsIt) {
  ClientProcess owner(daemon_.runtime_dir());
  ASSERT_EQ(owner.Ask("dial"), "ok");
  owner.Ask("hello");
  ASSERT_THAT(owner.Ask("device " + std::to_string(kBlock) + " ipc"), HasSubstr("offered"));
  EXPECT_THAT(Hosts(), SizeIs(1));
  EXPECT_EQ(node_.Used(0) + node_.Used(1), kBlock);
  owner.Kill();
  ExpectNoTrace();
}

TEST_F(IpcHostTest, KilledBetweenTwoRequestsItIsReplaced) {
  for (int i = 0; i < 5; ++i) {
    auto [lease, chunks] = client_.MustAllocate(WithHandle(0));
    const pid_t host = HostOf(0);
    chunks.clear();
    ASSERT_TRUE(Worked(client_.Release(lease.lease_id())));
    ASSERT_EQ(kill(host, SIGKILL), 0) << "it lingers for a moment";
    auto [next, next_chunks] = client_.MustAllocate(WithHandle(0));
    EXPECT_NE(HostOf(0), host);
    next_chunks.clear();
    ASSERT_TRUE(Worked(client_.Release(next.lease_id())));
    ExpectNoTrace();
  }
}

TEST_F(IpcHostTest, ADrainedGpuIsOpenInNoHost) {
  const v1::Lease lease = client_.MustAllocate(WithHandle(0)).first;
  const pid_t host = HostOf(0);
  v1::DrainRequest request;
  request.set_gpu_uuid(node_.uuid_text(0));
  grpc::ClientContext context;
  v1::DrainResponse response;
  ASSERT_TRUE(client_.nodes().Drain(&context, request, &response).ok());
  // Whoever is connected keeps the host from ending.
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string path = daemon_.runtime_dir() + "/ipc-" + node_.uuid_text(0) + ".sock";
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_TRUE(Worked(client_.Release(lease.lease_id())));
  // By its UUID: it changes its place when the daemon lets go of it.
  const auto gpu = [&] {
    const v1::GetNodeResponse node = client_.Node();
    for (const v1::Gpu& one : node.gpus()) {
      if (one.uuid() == request.gpu_uuid()) return one;
    }
    return v1::Gpu();
  };
  ASSERT_TRUE(Eventually([&] { return gpu().memory().lease_count() == 0; }));
  EXPECT_EQ(gpu().state(), v1::GPU_STATE_DRAINING) << "the host has it open";
  EXPECT_EQ(kill(host, 0), 0);
  connection.Reset();
  EXPECT_TRUE(Eventually([&] {
    const auto node = client_.GetNode();
    return node.ok() && gpu().state() == v1::GPU_STATE_DRAINED;
  })) << client_.Node().ShortDebugString();
}

TEST_F(IpcHostTest, WithoutDaemonAndKeeperItEndsWithTheLastWhoHasTheBlock) {
  auto [lease, chunks] = client_.MustAllocate(WithHandle(0));
  daemon_.Kill();
  EXPECT_EQ(node_.Used(0), kBlock) << "the client has it still";
  EXPECT_THAT(Hosts(), SizeIs(1));
  chunks.clear();
  EXPECT_TRUE(Eventually([&] { return Hosts().empty(); }));
  EXPECT_EQ(node_.Used(0), 0u);
}

// The daemon comes and goes; a keeper holds what it leased.
struct KeptNode {
  TemporaryDirectory folder;
  KeeperProcess keeper;
  DaemonProcess daemon;
  simulated::Node node;
  KeptNode()
      : keeper(folder.path() + "/run"),
        daemon({.simulate = "2x1GiB", .runtime_dir = folder.path() + "/run"}),
        node(daemon.node()) {}
  std::vector<pid_t> Hosts() { return IpcHosts(daemon.runtime_dir()); }
};

v1::AllocationSpec Named(const std::string& name) {
  v1::AllocationSpec spec = DeviceSpec(kBlock, name);
  spec.set_ipc_handle(true);
  spec.set_persistent(true);
  return spec;
}

TEST(IpcHostRestartTest, ANewDaemonHasTheLeasesAndTheirHandlesAndTheSameHost) {
  KeptNode node;
  v1::Lease lease;
  {
    RawClient owner(node.daemon.runtime_dir());
    owner.Connect();
    lease = owner.MustAllocate(Named("kept")).first;
  }
  const std::vector<pid_t> hosts = node.Hosts();
  ASSERT_THAT(hosts, SizeIs(1));
  node.daemon.Kill();
  node.daemon.Start();
  EXPECT_EQ(node.Hosts(), hosts);
  RawClient reader(node.daemon.runtime_dir());
  reader.Connect();
  const auto opened = reader.Open("kept");
  ASSERT_TRUE(Worked(opened));
  EXPECT_EQ(opened.message.lease().ipc_handle(), lease.ipc_handle());
  EXPECT_TRUE(opened.message.lease().ipc());
  ASSERT_TRUE(reader.Chunks(reader.last_tag(), lease.lease_id()).ok());
  // The same process makes the next, where it is on the same GPU.
  v1::AllocationSpec beside = Named("beside");
  beside.set_gpu_uuid(lease.gpu_uuid());
  const v1::Lease next = reader.MustAllocate(beside).first;
  EXPECT_EQ(node.Hosts(), hosts);
  // A new daemon sees its end as the old one would have.
  ASSERT_EQ(kill(hosts.front(), SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] {
    return !reader.GetLease(lease.lease_id()).ok() && !reader.GetLease(next.lease_id()).ok();
  }));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(reader.Node()); }));
}

TEST(IpcHostRestartTest, WhatWasLostWhileThereWasNoDaemonIsOverWhenOneIsBack) {
  KeptNode node;
  RawClient owner(node.daemon.runtime_dir());
  owner.Connect();
  const v1::Lease lease = owner.MustAllocate(Named("lost")).first;
  const v1::Lease plain = owner.MustAllocate(DeviceSpec(kBlock)).first;
  const std::vector<pid_t> hosts = node.Hosts();
  ASSERT_THAT(hosts, SizeIs(1));
  node.daemon.Kill();
  ASSERT_EQ(kill(hosts.front(), SIGKILL), 0);
  node.daemon.Start();
  EXPECT_TRUE(Eventually([&] {
    return Refused(owner.Open(lease.lease_id()), grpc::StatusCode::UNAVAILABLE,
                   v1::REASON_DEVICE_LOST);
  }));
  EXPECT_TRUE(Worked(owner.GetLease(plain.lease_id())));
  EXPECT_TRUE(Worked(owner.Release(plain.lease_id())));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(owner.Node()); }));
}

}  // namespace
}  // namespace gpulease::e2e
