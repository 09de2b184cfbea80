// SPDX-License-Identifier: Apache-2.0
//
// A GPU is taken out of service and put back, while the others serve.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/keeper_process.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;

struct DrainNode {
  TemporaryDirectory folder;
  KeeperProcess keeper;
  DaemonProcess daemon;
  std::string first = daemon.node().uuid_text(0), second = daemon.node().uuid_text(1);
  DrainNode() : keeper(folder.path() + "/run"), daemon({.runtime_dir = folder.path() + "/run"}) {}

  Ended Ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {BuiltProgram("gpuleasectl"), "--runtime-dir", daemon.runtime_dir()});
    return RunProgram(arguments);
  }
  v1::GpuState StateOf(const std::string& uuid) {
    const v1::GetNodeResponse node = RawClient(daemon.runtime_dir()).Node();
    for (const v1::Gpu& gpu : node.gpus()) {
      if (gpu.uuid() == uuid) return gpu.state();
    }
    return v1::GPU_STATE_UNSPECIFIED;
  }
};

std::uint64_t LeaseOn(ClientProcess& client, const std::string& uuid,
                      const std::string& more = "") {
  return ClientProcess::LeaseOf(client.Ask("device 4194304 gpu=" + uuid + more));
}

TEST(DrainTest, AnEmptyGpuIsClosedAndTheOtherServesOnAndItComesBack) {
  DrainNode node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  const std::uint64_t kept = LeaseOn(client, node.second, " name=kept");
  ASSERT_NE(kept, 0u);
  const Ended drained = node.Ctl({"drain", node.first, "--yes"});
  EXPECT_EQ(drained.exit_code, 0) << drained.output;
  EXPECT_THAT(drained.output, HasSubstr("safe to reset"));
  EXPECT_EQ(node.StateOf(node.first), v1::GPU_STATE_DRAINED);
  EXPECT_EQ(node.StateOf(node.second), v1::GPU_STATE_READY);
  EXPECT_TRUE(Eventually([&] { return !client.Ask("node").starts_with("error"); }));
  EXPECT_EQ(client.Ask("leases"), "kept");
  EXPECT_EQ(LeaseOn(client, node.first), 0u);
  EXPECT_NE(LeaseOn(client, node.second), 0u);
  // It stays so over a crash.
  node.daemon.Kill();
  node.daemon.Start();
  EXPECT_TRUE(Eventually([&] { return node.StateOf(node.first) == v1::GPU_STATE_DRAINED; }));
  const Ended undrained = node.Ctl({"undrain", node.first});
  EXPECT_EQ(undrained.exit_code, 0) << undrained.output;
  EXPECT_EQ(node.StateOf(node.first), v1::GPU_STATE_READY);
  EXPECT_TRUE(Eventually([&] { return !client.Ask("node").starts_with("error"); }));
  EXPECT_NE(LeaseOn(client, node.first), 0u);
}

TEST(DrainTest, ALostGpuIsLetGoOfAndComesBackWhenItIsWell) {
  DrainNode node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  ASSERT_NE(LeaseOn(client, node.first, " name=lost"), 0u);
  ASSERT_NE(LeaseOn(client, node.second, " name=kept"), 0u);
  node.daemon.node().RaiseXid(0, 79);
  // Two images: the one that lost it, and the one that does not have it open.
  const auto shown = [&] { return node.Ctl({"gpus", "-o", "json"}).output; };
  ASSERT_TRUE(Eventually([&] { return shown().find("safe to reset") != std::string::npos; }));
  EXPECT_EQ(node.StateOf(node.first), v1::GPU_STATE_LOST);
  EXPECT_TRUE(Eventually([&] { return !client.Ask("node").starts_with("error"); }));
  EXPECT_EQ(client.Ask("leases"), "kept");
  EXPECT_NE(LeaseOn(client, node.second), 0u);
  // It stays so over a crash.
  node.daemon.Kill();
  node.daemon.Start();
  EXPECT_TRUE(Eventually([&] { return shown().find("safe to reset") != std::string::npos; }));
  EXPECT_EQ(node.StateOf(node.first), v1::GPU_STATE_LOST);
  const Ended undrained = node.Ctl({"undrain", node.first});
  EXPECT_EQ(undrained.exit_code, 0) << undrained.output;
  EXPECT_EQ(node.StateOf(node.first), v1::GPU_STATE_READY);
  EXPECT_TRUE(Eventually([&] { return !client.Ask("node").starts_with("error"); }));
  EXPECT_NE(LeaseOn(client, node.first), 0u);
  EXPECT_EQ(client.Ask("leases"), "kept");
}

TEST(DrainTest, LeasesAreWaitedForAndEndedByForce) {
  DrainNode node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  const std::uint64_t lease = LeaseOn(client, node.first);
  ASSERT_NE(lease, 0u);
  RawClient root(node.daemon.runtime_dir());
  v1::DrainRequest request;
  request.set_gpu_uuid(node.first);
  v1::DrainResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(root.nodes().Drain(&context, request, &response).ok());
  EXPECT_EQ(response.lease_count(), 1u);
  EXPECT_EQ(node.StateOf(node.first), v1::GPU_STATE_DRAINING);
  EXPECT_EQ(LeaseOn(client, node.first), 0u) << "no grants";
  EXPECT_EQ(client.Ask("drop " + std::to_string(lease)), "ok");
  const Ended drained = node.Ctl({"drain", node.first, "--force", "--yes"});
  EXPECT_EQ(drained.exit_code, 0) << drained.output;
  EXPECT_THAT(drained.output, HasSubstr("end at once"));
  EXPECT_EQ(node.StateOf(node.first), v1::GPU_STATE_DRAINED);
}

TEST(DrainTest, IsForAdministratorsAndGpusThatAreThere) {
  if (!CanSwitchUsers()) GTEST_SKIP() << "only root can start clients of other users";
  DrainNode node;
  const std::string ctl = BuiltProgram("gpuleasectl");
  const Ended denied =
      RunProgram({"/usr/bin/setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", ctl,
                  "--runtime-dir", node.daemon.runtime_dir(), "drain", node.first, "--yes"});
  EXPECT_EQ(denied.exit_code, 4) << denied.output;
  EXPECT_EQ(node.Ctl({"drain", "GPU-nothing", "--yes"}).exit_code, 1);
  EXPECT_EQ(node.Ctl({"undrain", node.first}).exit_code, 1);
  EXPECT_EQ(node.Ctl({"drain", node.first, "--dry-run"}).exit_code, 0);
  EXPECT_EQ(node.StateOf(node.first), v1::GPU_STATE_READY);
}

}  // namespace
}  // namespace gpulease::e2e
