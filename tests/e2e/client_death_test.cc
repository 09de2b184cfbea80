// SPDX-License-Identifier: Apache-2.0
//
// A client is killed at every step: the books are right, the memory can be leased again, and the
// daemon keeps nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <functional>
#include <memory>

#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kHalf = 512 * kMiB;

class ClientDeathTest : public ::testing::Test {
 protected:
  ClientDeathTest() : daemon_({.simulate = "1x1GiB"}), observer_(daemon_.runtime_dir()) {
    // What is made on first use is made before anything is counted.
    ClientProcess warm_up(daemon_.runtime_dir());
    warm_up.Connect();
    EXPECT_NE(ClientProcess::LeaseOf(warm_up.Ask("device 2097152")), 0u);
    warm_up.Kill();
    EXPECT_TRUE(Eventually([&] { return IsQuiet(); }));
    descriptors_ = daemon_.settled_descriptors();
  }
  bool IsQuiet() {
    const v1::GetNodeResponse node = observer_.Node();
    return IsAllFree(node) && node.session_count() == 0 && daemon_.node().Used(0) == 0;
  }
  // Everything is as it was before the clients came, and all of the GPU can be had.
  void ExpectNoTrace() {
    EXPECT_TRUE(AddsUp(observer_.Node()));
    EXPECT_TRUE(Eventually([&] { return IsQuiet(); })) << observer_.Node().ShortDebugString();
    EXPECT_TRUE(Eventually([&] { return daemon_.open_descriptors() <= descriptors_; }))
        << daemon_.open_descriptors() << " descriptors, before " << descriptors_;
    RawClient next(daemon_.runtime_dir());
    next.Connect();
    EXPECT_TRUE(Worked(next.Allocate({DeviceSpec(kGiB)})));
  }
  std::unique_ptr<ClientProcess> Connected() {
    auto client = std::make_unique<ClientProcess>(daemon_.runtime_dir());
    client->Connect();
    return client;
  }
  static std::string Lease(ClientProcess& client, const std::string& request) {
    const std::string answer = client.Ask(request);
    EXPECT_NE(ClientProcess::LeaseOf(answer), 0u) << answer;
    return std::to_string(ClientProcess::LeaseOf(answer));
  }

  DaemonProcess daemon_;
  RawClient observer_;
  std::size_t descriptors_ = 0;
};

TEST_F(ClientDeathTest, BeforeHello) {
  ClientProcess client(daemon_.runtime_dir());
  ASSERT_EQ(client.Ask("dial"), "ok");
  client.Kill();
  ExpectNoTrace();
}

TEST_F(ClientDeathTest, AfterHello) {
  Connected()->Kill();
  ExpectNoTrace();
}

TEST_F(ClientDeathTest, WithItsDescriptorsOnTheirWay) {
  auto client = Connected();
  Lease(*client, "device 536870912 untaken");
  Lease(*client, "host 65536 untaken");
  client->Kill();
  ExpectNoTrace();
}

TEST_F(ClientDeathTest, AfterItHasTheLease) {
  auto client = Connected();
  Lease(*client, "device 536870912 name=mine");
  Lease(*client, "host 65536");
  client->Kill();
  ExpectNoTrace();
}

TEST_F(ClientDeathTest, WhileItHasItMapped) {
  auto client = Connected();
  for (const char* request : {"device 4194304", "host 65536"}) {
    const std::string id = Lease(*client, request);
    ASSERT_EQ(client->Ask("map " + id), "ok");
    ASSERT_EQ(client->Ask("fill " + id + " 85"), "ok");
  }
  client->Kill();
  ExpectNoTrace();
}

TEST_F(ClientDeathTest, WhileQueued) {
  auto holder = Connected();
  const std::string held = Lease(*holder, "device 1073741824");
  auto client = Connected();
  ASSERT_THAT(client->Ask("device 2097152 wait=600000"), HasSubstr("queued 1"));
  client->Kill();
  EXPECT_TRUE(Eventually([&] { return observer_.Node().gpus(0).memory().queue_length() == 0; }));
  ASSERT_EQ(holder->Ask("release " + held), "ok");
  holder.reset();
  ExpectNoTrace();
}

TEST_F(ClientDeathTest, WhileItAwaits) {
  auto holder = Connected();
  const std::string held = Lease(*holder, "device 1073741824");
  auto client = Connected();
  const std::string id = Lease(*client, "device 2097152 wait=600000");
  client->Send("await " + id);
  client->Kill();
  EXPECT_TRUE(Eventually([&] { return observer_.Node().gpus(0).memory().queue_length() == 0; }));
  holder.reset();
  ExpectNoTrace();
}

TEST_F(ClientDeathTest, InTheInstantOfItsGrant) {
  for (int round = 0; round < 10; ++round) {
    auto holder = Connected();
    const std::string held = Lease(*holder, "device 1073741824");
    auto client = Connected();
    const std::string id = Lease(*client, "device 1073741824 wait=600000");
    client->Send("await " + id);
    kill(holder->pid(), SIGKILL);
    client->Kill();
    holder->Kill();
    ASSERT_TRUE(Eventually([&] { return IsQuiet(); })) << observer_.Node().ShortDebugString();
  }
  ExpectNoTrace();
}

TEST_F(ClientDeathTest, WhileItHoldsAnothersLease) {
  auto owner = Connected();
  const std::string id = Lease(*owner, "device 536870912 name=shared");
  auto holder = Connected();
  ASSERT_EQ(Lease(*holder, "open shared rw"), id);
  ASSERT_EQ(holder->Ask("map " + id), "ok");
  holder->Kill();
  EXPECT_TRUE(Eventually([&] {
    const auto seen = observer_.GetLease(std::stoull(id));
    return seen.ok() && seen.message.lease().holders_size() == 1;
  }));
  EXPECT_EQ(owner->Ask("map " + id), "ok") << "the owner's lease is untouched";
  owner.reset();
  ExpectNoTrace();
}

TEST_F(ClientDeathTest, AHolderKeepsWhatADeadOwnerWrote) {
  auto owner = Connected();
  const std::string id = Lease(*owner, "device 4194304 name=shared");
  ASSERT_EQ(owner->Ask("map " + id), "ok");
  ASSERT_EQ(owner->Ask("fill " + id + " 90"), "ok");
  auto holder = Connected();
  ASSERT_EQ(Lease(*holder, "open shared ro"), id);
  owner->Kill();
  EXPECT_TRUE(Eventually([&] {
    const auto seen = observer_.GetLease(std::stoull(id));
    return seen.ok() && seen.message.lease().state() == v1::LEASE_STATE_RELEASED;
  }));
  ASSERT_EQ(holder->Ask("map " + id + " ro"), "ok");
  EXPECT_EQ(holder->Ask("check " + id + " 90"), "yes");
  EXPECT_EQ(observer_.Node().gpus(0).memory().leased_bytes(), 4 * kMiB);
  // The dead owner's name is free.
  auto next = Connected();
  EXPECT_NE(Lease(*next, "device 2097152 name=shared"), id);
  next.reset();
  ASSERT_EQ(holder->Ask("unmap " + id), "ok");
  ASSERT_EQ(holder->Ask("drop " + id), "ok");
  ASSERT_EQ(holder->Ask("close " + id), "ok");
  holder.reset();
  ExpectNoTrace();
}

TEST_F(ClientDeathTest, AForkedChildKeepsTheMemoryOfItsDeadParentFromEverybody) {
  auto parent = Connected();
  const std::string id = Lease(*parent, "device 805306368");  // 768 MiB
  ASSERT_EQ(parent->Ask("map " + id), "ok");
  ASSERT_EQ(parent->Ask("fill " + id + " 7"), "ok");
  const pid_t child = std::stoi(parent->Ask("fork"));
  ASSERT_GT(child, 0);
  parent->Kill();
  EXPECT_TRUE(Eventually([&] { return observer_.Node().session_count() == 0; }));
  RawClient next(daemon_.runtime_dir());
  next.Connect();
  // For what is on its way back it waits a moment, which does not help here.
  EXPECT_TRUE(Refused(next.Allocate({DeviceSpec(kHalf)}), grpc::StatusCode::UNAVAILABLE,
                      v1::REASON_MEMORY_SHORT));
  const v1::MemoryUse use = observer_.Node().gpus(0).memory();
  EXPECT_TRUE(AddsUp(use));
  EXPECT_EQ(use.releasing_bytes() + use.unconfirmed_bytes(), 768 * kMiB);
  const auto queued = next.Allocate({DeviceSpec(kHalf)}, 600'000);
  ASSERT_TRUE(Worked(queued));
  EXPECT_EQ(queued.message.leases(0).state(), v1::LEASE_STATE_QUEUED);
  kill(child, SIGKILL);
  EXPECT_TRUE(Worked(next.Await(queued.message.leases(0).lease_id())));
  ASSERT_TRUE(Worked(next.Release(queued.message.leases(0).lease_id())));
  next.HangUp();
}

TEST(ForkedChildTest, WhatAForkedChildKeepsForLongIsUnconfirmedAndTheChildIsNamed) {
  DaemonProcess daemon({.simulate = "1x1GiB", .config = "release_bound_ms: 50"});
  RawClient observer(daemon.runtime_dir());
  ClientProcess parent(daemon.runtime_dir());
  parent.Connect();
  const std::uint64_t id = ClientProcess::LeaseOf(parent.Ask("device 4194304"));
  ASSERT_EQ(parent.Ask("map " + std::to_string(id)), "ok");
  const pid_t child = std::stoi(parent.Ask("fork"));
  parent.Kill();
  EXPECT_TRUE(Eventually([&] {
    const v1::Gpu gpu = observer.Node().gpus(0);
    if (gpu.memory().unconfirmed_bytes() != 4 * kMiB) return false;
    for (const v1::Suspect& suspect : gpu.suspects()) {
      if (suspect.pid() == child) return true;
    }
    return false;
  })) << observer.Node().gpus(0).ShortDebugString();
  EXPECT_TRUE(AddsUp(observer.Node()));
  kill(child, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return IsAllFree(observer.Node()); }));
}

TEST(LostSessionTest, WhatALivingProcessMayStillMapIsQuarantinedUntilItLetsGo) {
  DaemonProcess daemon({.simulate = "1x1GiB", .config = "session_grace_ms: 20"});
  RawClient observer(daemon.runtime_dir());
  ClientProcess client(daemon.runtime_dir());
  client.Connect();
  const std::uint64_t lease = ClientProcess::LeaseOf(client.Ask("device 805306368"));
  const std::string id = std::to_string(lease);
  ASSERT_EQ(client.Ask("map " + id), "ok");
  ASSERT_EQ(client.Ask("hangup"), "ok");
  EXPECT_TRUE(Eventually(
      [&] { return observer.Node().gpus(0).memory().quarantined_bytes() == 768 * kMiB; }));
  EXPECT_TRUE(AddsUp(observer.Node()));
  RawClient next(daemon.runtime_dir());
  next.Connect();
  EXPECT_TRUE(Refused(next.Allocate({DeviceSpec(kHalf)}), grpc::StatusCode::UNAVAILABLE,
                      v1::REASON_MEMORY_SHORT));
  // It still writes to it, and harms nobody.
  EXPECT_EQ(client.Ask("fill " + id + " 1"), "ok");
  ASSERT_EQ(client.Ask("unmap " + id), "ok");
  ASSERT_EQ(client.Ask("drop " + id), "ok");
  EXPECT_TRUE(Eventually([&] { return IsAllFree(observer.Node()); }));
  EXPECT_TRUE(Worked(next.Allocate({DeviceSpec(kGiB)})));
}

}  // namespace
}  // namespace gpulease::e2e
