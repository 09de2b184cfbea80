// SPDX-License-Identifier: Apache-2.0
//
// The daemon's start: without a driver, with GPUs that are missing, with sockets of a service
// manager's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE

// A simulated node of two GPUs that is there before its daemon is.
class StartTest : public ::testing::Test {
 protected:
  StartTest()
      : node_([this] {
          std::filesystem::create_directory(runtime_dir());
          return *simulated::Node::Create(runtime_dir() + "/simulated", {.gpus = {kGiB, kGiB}});
        }()) {}
  ~StartTest() override { node_.ClearFaults(); }

  std::string runtime_dir() const { return folder_.path() + "/run"; }
  void HideDriver() {
    ASSERT_TRUE(node_.InjectFault({.function = "cuInit", .times = 0, .code = kNoDevice}).ok());
  }
  DaemonOptions Options(std::string config = "") const {
    return {.simulate = "2x1GiB",
            .config = std::move(config),
            .runtime_dir = runtime_dir(),
            .await_ready = false};
  }
  std::string Expecting(int gpu) const {
    return "expected_gpus: \"" + node_.uuid_text(gpu) + "\"\n";
  }

  TemporaryDirectory folder_;
  simulated::Node node_;
};

TEST_F(StartTest, WithoutADriverItWaitsSaysSoAndRecoversByItself) {
  HideDriver();
  DaemonProcess daemon(Options());
  ASSERT_TRUE(daemon.AwaitNotification("STATUS=waiting for the driver")) << daemon.log();
  EXPECT_TRUE(daemon.AwaitNotification("EXTEND_TIMEOUT_USEC="));
  // Who comes meanwhile is told.
  RawClient early(daemon.runtime_dir());
  ASSERT_TRUE(early.Dial().ok());
  const auto welcome = early.Hello();
  ASSERT_FALSE(welcome.ok());
  EXPECT_EQ(welcome.error().code, Code::kUnavailable);
  EXPECT_EQ(welcome.error().reason, Reason::kGpuUnavailable);
  EXPECT_THAT(welcome.error().message, HasSubstr("waiting for the driver"));
  EXPECT_THAT(early.Node().message(), HasSubstr("CUDA_ERROR_NO_DEVICE"));
  // It looks again and again, and says it once.
  EXPECT_TRUE(Eventually([&] { return node_.FaultsMet() >= 3; }));
  EXPECT_THAT(daemon.notifications(), Not(HasSubstr("READY=1")));
  const std::string log = daemon.log();
  EXPECT_EQ(log.find("waiting for the driver"), log.rfind("waiting for the driver")) << log;

  const pid_t pid = daemon.pid();
  node_.ClearFaults();
  ASSERT_TRUE(daemon.AwaitNotification("READY=1")) << daemon.log();
  EXPECT_EQ(daemon.pid(), pid);
  RawClient client(daemon.runtime_dir());
  client.Connect();
  client.MustAllocate(DeviceSpec(2 * kMiB));
  EXPECT_EQ(client.Node().message(), "");
  EXPECT_EQ(daemon.Stop(), 0);
  EXPECT_FALSE(std::filesystem::exists(daemon.grpc_socket()));
}

TEST_F(StartTest, AWaitingDaemonStops) {
  HideDriver();
  DaemonProcess daemon(Options());
  ASSERT_TRUE(daemon.AwaitNotification("STATUS=waiting for the driver"));
  EXPECT_EQ(daemon.Stop(), 0);
  EXPECT_TRUE(daemon.AwaitNotification("STOPPING=1"));
}

TEST_F(StartTest, AReloadDoesNotMakeAWaitingDaemonReady) {
  HideDriver();
  DaemonProcess daemon(Options("log_level: \"info\""));
  ASSERT_TRUE(daemon.AwaitNotification("STATUS=waiting for the driver"));
  daemon.WriteConfig("log_level: \"debug\"");
  daemon.Signal(SIGHUP);
  EXPECT_TRUE(
      Eventually([&] { return daemon.log().find("changed log_level") != std::string::npos; }));
  EXPECT_THAT(daemon.notifications(), Not(HasSubstr("READY=1")));
}

TEST_F(StartTest, AProbeThatHangsHangsNothingElse) {
  HideDriver();
  DaemonProcess daemon(Options());
  ASSERT_TRUE(daemon.AwaitNotification("STATUS=waiting for the driver"));
  node_.ClearFaults();
  ASSERT_TRUE(
      node_
          .InjectFault({.function = "cuInit", .times = 0, .action = simulated::FaultAction::kBlock})
          .ok());
  ASSERT_TRUE(Eventually([&] {
    return node_.FaultsMet() > 0 || daemon.notifications().find("READY=1") != std::string::npos;
  }));
  RawClient client(daemon.runtime_dir());
  EXPECT_TRUE(Worked(client.GetNode()));
  EXPECT_EQ(daemon.Stop(), 0);
}

TEST_F(StartTest, WhereNoGpuIsExpectedHostMemoryIsServedWithoutADriver) {
  HideDriver();
  DaemonProcess daemon(Options("expected_gpu_count: 0"));
  ASSERT_TRUE(daemon.AwaitNotification("READY=1")) << daemon.log();
  RawClient client(daemon.runtime_dir());
  client.Connect();
  client.MustAllocate(HostSpec(4096));
  EXPECT_THAT(daemon.log(), HasSubstr("host memory alone"));
}

TEST_F(StartTest, AMissingGpuIsNamedAwaitedForATimeAndAdoptedWhenItComes) {
  node_.SetPresent(1, false);
  DaemonProcess daemon(Options(Expecting(1) + "gpu_wait_ms: 1500"));
  const std::string uuid = node_.uuid_text(1);
  ASSERT_TRUE(daemon.AwaitNotification("STATUS=waiting for " + uuid)) << daemon.log();
  RawClient early(daemon.runtime_dir());
  ASSERT_TRUE(early.Dial().ok());
  EXPECT_FALSE(early.Hello().ok());
  ASSERT_TRUE(daemon.AwaitNotification("READY=1")) << daemon.log();
  EXPECT_THAT(daemon.log(), HasSubstr(uuid + " missing"));
  {
    // The other is served, and a lease of it keeps the daemon as it is.
    RawClient client(daemon.runtime_dir());
    client.Connect();
    auto kept = client.MustAllocate(DeviceSpec(2 * kMiB));
    EXPECT_EQ(kept.first.gpu_uuid(), node_.uuid_text(0));
    const v1::GetNodeResponse node = client.Node();
    ASSERT_EQ(node.gpus_size(), 2);
    EXPECT_EQ(node.gpus(1).uuid(), uuid);
    EXPECT_EQ(node.gpus(1).state(), v1::GPU_STATE_MISSING);
    node_.SetPresent(1, true);
    EXPECT_TRUE(
        Eventually([&] { return daemon.log().find(uuid + " is there") != std::string::npos; }));
    EXPECT_EQ(client.Node().gpus(1).state(), v1::GPU_STATE_MISSING);
    EXPECT_THAT(client.Node().gpus(1).message(), HasSubstr("adopted once no lease is held"));
    EXPECT_TRUE(Worked(client.Release(kept.first.lease_id())));
  }
  EXPECT_TRUE(Eventually([&] {
    RawClient client(daemon.runtime_dir());
    const auto node = client.GetNode();
    return node.ok() && node.message.gpus_size() == 2 &&
           node.message.gpus(1).state() == v1::GPU_STATE_READY;
  })) << daemon.log();
  EXPECT_EQ(daemon.Stop(), 0);
}

TEST_F(StartTest, GpusThatAreOnlyCountedAreAwaitedToo) {
  node_.SetPresent(0, false);
  DaemonProcess daemon(Options("expected_gpu_count: 2"));
  ASSERT_TRUE(daemon.AwaitNotification("STATUS=waiting for 1 GPU")) << daemon.log();
  node_.SetPresent(0, true);
  ASSERT_TRUE(daemon.AwaitNotification("READY=1")) << daemon.log();
  RawClient client(daemon.runtime_dir());
  ASSERT_EQ(client.Node().gpus_size(), 2);
  EXPECT_EQ(client.Node().gpus(0).state(), v1::GPU_STATE_READY);
}

// ------------------------------------------------------------------------------------------------
// the watchdog

std::size_t Fed(DaemonProcess& daemon) {
  const std::string& said = daemon.notifications();
  std::size_t count = 0;
  for (std::size_t at = 0; (at = said.find("WATCHDOG=1", at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST_F(StartTest, TheWatchdogIsFedWhileItServesAndWhileADriverCallHangs) {
  DaemonOptions options = Options();
  options.environment = {"WATCHDOG_USEC=200000"};
  DaemonProcess daemon(options);
  ASSERT_TRUE(daemon.AwaitNotification("READY=1"));
  std::size_t before = Fed(daemon);
  EXPECT_TRUE(Eventually([&] { return Fed(daemon) >= before + 5; }));
  ASSERT_TRUE(node_
                  .InjectFault({.function = "nvmlDeviceGetMemoryInfo_v2",
                                .times = 0,
                                .pid = daemon.pid(),
                                .action = simulated::FaultAction::kBlock})
                  .ok());
  RawClient client(daemon.runtime_dir());
  EXPECT_TRUE(Eventually([&] {
    static_cast<void>(client.GetNode().ok());
    return node_.FaultsMet() >= 2;
  })) << "a call hangs on each GPU";
  before = Fed(daemon);
  EXPECT_TRUE(Eventually([&] { return Fed(daemon) >= before + 5; }));
}

TEST_F(StartTest, TheWatchdogIsFedWhileItWaitsForTheDriver) {
  HideDriver();
  DaemonOptions options = Options();
  options.environment = {"WATCHDOG_USEC=200000"};
  DaemonProcess daemon(options);
  ASSERT_TRUE(daemon.AwaitNotification("STATUS=waiting for the driver"));
  const std::size_t before = Fed(daemon);
  EXPECT_TRUE(Eventually([&] { return Fed(daemon) >= before + 5; }));
}

TEST_F(StartTest, WithoutAWatchdogNothingIsFed) {
  DaemonProcess daemon(Options());
  ASSERT_TRUE(daemon.AwaitNotification("READY=1"));
  const std::size_t before = Fed(daemon);  // while the GPUs were initialised
  EXPECT_EQ(daemon.Stop(), 0);
  EXPECT_EQ(Fed(daemon), before);
}

// ------------------------------------------------------------------------------------------------
// sockets of a service manager's

UniqueFd ListenAt(const std::string& path, int type) {
  UniqueFd listener(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(listen(listener.get(), 64), 0);
  return listener;
}

TEST_F(StartTest, SocketsOfAServiceManagerAreServedAndLeftInPlace) {
  const std::string handles_path = runtime_dir() + "/handles.sock";
  const std::string grpc_path = runtime_dir() + "/gpulease.sock";
  // In an order that is not that of any list.
  const UniqueFd handles = ListenAt(handles_path, SOCK_SEQPACKET);
  const UniqueFd grpc = ListenAt(grpc_path, SOCK_STREAM);
  // Who comes before the daemon waits for it.
  RawClient early(runtime_dir());
  ASSERT_TRUE(early.Dial().ok());
  DaemonOptions options = Options();
  options.sockets = {handles.get(), grpc.get()};
  DaemonProcess daemon(options);
  EXPECT_TRUE(early.Hello().ok());
  ASSERT_TRUE(daemon.AwaitNotification("READY=1")) << daemon.log();
  early.MustAllocate(DeviceSpec(2 * kMiB));
  EXPECT_EQ(daemon.Stop(), 0);
  EXPECT_TRUE(std::filesystem::exists(handles_path));
  EXPECT_TRUE(std::filesystem::exists(grpc_path));
  daemon.Start();
  ASSERT_TRUE(daemon.AwaitNotification("READY=1"));
  RawClient late(runtime_dir());
  late.Connect();
}

TEST_F(StartTest, SocketsOfAServiceManagerOutliveARenewal) {
  const UniqueFd handles = ListenAt(runtime_dir() + "/handles.sock", SOCK_SEQPACKET);
  const UniqueFd grpc = ListenAt(runtime_dir() + "/gpulease.sock", SOCK_STREAM);
  HideDriver();
  DaemonOptions options = Options();
  options.sockets = {grpc.get(), handles.get()};
  DaemonProcess daemon(options);
  ASSERT_TRUE(daemon.AwaitNotification("STATUS=waiting for the driver")) << daemon.log();
  node_.ClearFaults();
  ASSERT_TRUE(daemon.AwaitNotification("READY=1")) << daemon.log();
  RawClient client(runtime_dir());
  client.Connect();
  EXPECT_EQ(daemon.Stop(), 0);
  EXPECT_TRUE(std::filesystem::exists(runtime_dir() + "/handles.sock"));
}

TEST_F(StartTest, HalfOfTheServiceManagersSocketsIsRefused) {
  const UniqueFd handles = ListenAt(runtime_dir() + "/handles.sock", SOCK_SEQPACKET);
  DaemonOptions options = Options();
  options.sockets = {handles.get()};
  DaemonProcess daemon(options);
  EXPECT_EQ(daemon.AwaitEnd(std::chrono::seconds(20)), 1);
  EXPECT_THAT(daemon.log(), HasSubstr("one socket of the two"));
}

}  // namespace
}  // namespace gpulease::e2e
