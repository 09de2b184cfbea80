// SPDX-License-Identifier: Apache-2.0
//
// The daemon comes and goes, and with a keeper beside it nobody loses anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/check.h"
#include "base/descriptor_channel.h"
#include "daemon/state/entry.h"
#include "daemon/state/keeper_protocol.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/keeper_process.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSize[] = "67108864";

struct Node {
  TemporaryDirectory folder;
  KeeperProcess keeper;
  DaemonProcess daemon;
  explicit Node(int away_seconds = 60, std::string config = "")
      : keeper(folder.path() + "/run", away_seconds),
        daemon({.config = std::move(config), .runtime_dir = folder.path() + "/run"}) {}

  void Restart() {
    daemon.Kill();
    daemon.Start();
  }
  v1::GetNodeResponse Status() { return RawClient(daemon.runtime_dir()).Node(); }
  Bytes Leased() {
    const v1::GetNodeResponse status = Status();
    Bytes bytes = 0;
    for (const v1::Gpu& gpu : status.gpus()) bytes += gpu.memory().leased_bytes();
    return bytes;
  }
  Bytes NotFree() {
    const v1::GetNodeResponse status = Status();
    Bytes bytes = 0;
    for (const v1::Gpu& gpu : status.gpus())
      bytes += gpu.memory().total_bytes() - gpu.memory().free_bytes();
    return bytes;
  }
};

// A stock gRPC client's first call fails after the connection was lost under it.
void AwaitConnection(ClientProcess& client) {
  EXPECT_TRUE(Eventually([&] { return !client.Ask("node").starts_with("error"); }));
}

std::uint64_t MustLease(ClientProcess& client, const std::string& command) {
  const std::string answer = client.Ask(command);
  EXPECT_THAT(answer, HasSubstr("offered"));
  return ClientProcess::LeaseOf(answer);
}

TEST(RestartTest, AKilledDaemonsLeasesAreThereAgainAndItsClientsNoticeNothing) {
  Node node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  const std::uint64_t device = MustLease(client, std::string("device ") + kSize + " name=weights");
  const std::uint64_t host = MustLease(client, "host 1048576 name=staging");
  for (const std::uint64_t id : {device, host}) {
    EXPECT_EQ(client.Ask("map " + std::to_string(id)), "ok");
    EXPECT_EQ(client.Ask("fill " + std::to_string(id) + " 77"), "ok");
  }
  const std::string instance = node.Status().instance();
  node.Restart();
  EXPECT_EQ(node.Status().instance(), instance);
  EXPECT_THAT(node.daemon.log(), HasSubstr("took up 1 sessions and 2 leases"));
  EXPECT_EQ(node.Leased(), 64 * kMiB);
  AwaitConnection(client);
  // The session is the one that it was, over the connection that it was.
  EXPECT_EQ(client.Ask("leases"), "staging weights");
  EXPECT_EQ(client.Ask("check " + std::to_string(device) + " 77"), "yes");
  ClientProcess reader(node.daemon.runtime_dir());
  reader.Connect();
  for (const std::string name : {"weights", "staging"}) {
    const std::uint64_t opened = MustLease(reader, "open " + name + " ro");
    EXPECT_EQ(reader.Ask("map " + std::to_string(opened) + " ro"), "ok");
    EXPECT_EQ(reader.Ask("check " + std::to_string(opened) + " 77"), "yes");
  }
  EXPECT_THAT(client.Ask(std::string("device ") + kSize), HasSubstr("offered"));
  EXPECT_EQ(client.Ask("release " + std::to_string(device)), "ok");
}

TEST(RestartTest, WhatDeadProcessesHadComesBackAndWhatTheLivingHaveStays) {
  Node node;
  ClientProcess lives(node.daemon.runtime_dir());
  ClientProcess dies(node.daemon.runtime_dir());
  lives.Connect();
  dies.Connect();
  MustLease(lives, std::string("device ") + kSize + " name=mine");
  const std::uint64_t shared =
      MustLease(dies, std::string("device ") + kSize + " name=shared mode=0666");
  MustLease(dies, std::string("device ") + kSize + " name=his");
  MustLease(lives, "open " + std::to_string(shared) + " rw");
  node.daemon.Kill();
  dies.Kill();
  node.daemon.Start();
  EXPECT_THAT(node.daemon.log(), HasSubstr("1 sessions had ended meanwhile"));
  EXPECT_TRUE(Eventually([&] { return node.NotFree() == 2 * 64 * kMiB; }));
  AwaitConnection(lives);
  EXPECT_EQ(lives.Ask("leases"), "mine shared");
  EXPECT_EQ(lives.Ask("drop " + std::to_string(shared)), "ok");
  EXPECT_EQ(lives.Ask("close " + std::to_string(shared)), "ok");
  EXPECT_TRUE(Eventually([&] { return node.NotFree() == 64 * kMiB; }));
}

TEST(RestartTest, AnOrderlyRestartIsNoOther) {
  Node node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  const std::uint64_t lease = MustLease(client, std::string("device ") + kSize + " name=mine");
  EXPECT_EQ(node.daemon.Stop(), 0);
  node.daemon.Start();
  EXPECT_TRUE(Eventually([&] { return node.Leased() == 64 * kMiB; })) << node.daemon.log();
  AwaitConnection(client);
  EXPECT_EQ(client.Ask("drop " + std::to_string(lease)), "ok");
  EXPECT_EQ(client.Ask("release " + std::to_string(lease)), "ok");
  EXPECT_TRUE(Eventually([&] { return node.NotFree() == 0; }));
}

TEST(RestartTest, WhatAClientTakesWhileItIsAwayIsKnownAfterwards) {
  Node node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  const std::uint64_t lease = MustLease(client, std::string("device ") + kSize + " untaken");
  EXPECT_EQ(node.Leased(), 0u);
  node.daemon.Kill();
  EXPECT_EQ(client.Ask("take " + std::to_string(lease)), std::to_string(lease) + " offered");
  node.daemon.Start();
  EXPECT_TRUE(Eventually([&] { return node.Leased() == 64 * kMiB; })) << node.daemon.log();
}

TEST(RestartTest, ARetryAfterItGetsTheSameLease) {
  Node node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  const std::uint64_t lease = MustLease(client, std::string("device ") + kSize + " id=once");
  node.Restart();
  AwaitConnection(client);
  EXPECT_EQ(MustLease(client, std::string("device ") + kSize + " id=once"), lease);
  EXPECT_EQ(node.Leased(), 64 * kMiB);
}

TEST(RestartTest, ClientsThatCloseWhileItIsAwayAreGivenTheirGrace) {
  Node node(60, "session_grace_ms: 100");
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  MustLease(client, std::string("device ") + kSize);
  node.daemon.Kill();
  EXPECT_EQ(client.Ask("hangup"), "ok");
  EXPECT_EQ(client.Ask("drop"), "ok");
  node.daemon.Start();
  EXPECT_TRUE(Eventually([&] { return node.Status().session_count() == 0; }));
  EXPECT_TRUE(Eventually([&] { return node.Leased() == 0; }));
}

TEST(RestartTest, AKilledKeepersPlaceIsTakenByTheNext) {
  Node node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  const std::uint64_t lease = MustLease(client, std::string("device ") + kSize + " name=mine");
  EXPECT_EQ(client.Ask("map " + std::to_string(lease)), "ok");
  EXPECT_EQ(client.Ask("fill " + std::to_string(lease) + " 9"), "ok");
  node.keeper.Kill();
  EXPECT_TRUE(Eventually(
      [&] { return node.daemon.log().find("the keeper is gone") != std::string::npos; }));
  EXPECT_THAT(client.Ask(std::string("device ") + kSize + " name=meanwhile"), HasSubstr("offered"));
  node.keeper.Start();
  EXPECT_TRUE(Eventually(
      [&] { return node.daemon.log().find("the keeper is there") != std::string::npos; }));
  node.Restart();
  AwaitConnection(client);
  EXPECT_EQ(client.Ask("leases"), "meanwhile mine");
  EXPECT_EQ(client.Ask("check " + std::to_string(lease) + " 9"), "yes");
}

TEST(RestartTest, AKeeperThatIsStuckKeepsNobodyWaitingAndIsFilledWhenItGoesOn) {
  Node node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  kill(node.keeper.pid(), SIGSTOP);
  EXPECT_THAT(client.Ask(std::string("device ") + kSize + " name=mine"), HasSubstr("offered"));
  EXPECT_TRUE(
      Eventually([&] { return node.daemon.log().find("has not answered") != std::string::npos; }));
  ClientProcess another(node.daemon.runtime_dir());
  another.Connect();
  EXPECT_THAT(another.Ask(std::string("device ") + kSize + " name=other"), HasSubstr("offered"));
  EXPECT_FALSE(node.Status().keeper().connected());
  kill(node.keeper.pid(), SIGCONT);
  EXPECT_TRUE(Eventually([&] { return node.Status().keeper().connected(); }));
  node.Restart();
  AwaitConnection(client);
  EXPECT_EQ(client.Ask("leases"), "mine other");
}

TEST(RestartTest, AKeeperThatIsReplacedByExecLosesNothing) {
  Node node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  MustLease(client, std::string("device ") + kSize + " name=mine");
  node.keeper.Upgrade();  // by then it has read what it was sent
  const std::size_t descriptors = node.keeper.open_descriptors();
  node.keeper.Upgrade();
  EXPECT_EQ(node.keeper.open_descriptors(), descriptors);
  EXPECT_THAT(client.Ask(std::string("device ") + kSize + " name=after"), HasSubstr("offered"));
  EXPECT_THAT(node.daemon.log(), Not(HasSubstr("the keeper is gone")));
  node.daemon.Kill();
  node.keeper.Upgrade();
  node.daemon.Start();
  AwaitConnection(client);
  EXPECT_EQ(client.Ask("leases"), "after mine");
}

TEST(RestartTest, MemoryGoesBackWhenTheDaemonStaysAway) {
  Node node(1);
  {
    ClientProcess client(node.daemon.runtime_dir());
    client.Connect();
    MustLease(client, std::string("device ") + kSize);
    node.daemon.Kill();
  }
  EXPECT_TRUE(Eventually([&] { return node.daemon.node().Used(0) == 0; }));
  EXPECT_TRUE(Eventually(
      [&] { return node.keeper.log().find("no daemon came back") != std::string::npos; }));
  node.daemon.Start();
  EXPECT_TRUE(Eventually([&] { return node.NotFree() == 0; }));
}

TEST(RestartTest, AStopOfBothGivesEverythingBack) {
  Node node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  MustLease(client, std::string("device ") + kSize);
  EXPECT_EQ(node.daemon.Stop(), 0);
  EXPECT_EQ(node.keeper.Stop(), 0);
  client.Kill();
  EXPECT_TRUE(Eventually([&] { return node.daemon.node().Used(0) == 0; }));
}

TEST(RestartTest, ADaemonThatDiesOfItsRecordsStartsWithAllOfThemQuarantined) {
  Node node;
  ClientProcess client(node.daemon.runtime_dir());
  client.Connect();
  const std::uint64_t lease = MustLease(client, std::string("device ") + kSize + " name=mine");
  for (int life = 0; life < 2; ++life) node.Restart();
  AwaitConnection(client);
  EXPECT_EQ(client.Ask("leases"), "mine");
  node.Restart();
  EXPECT_THAT(node.daemon.log(), HasSubstr("all of it is quarantined"));
  v1::GetNodeResponse status = node.Status();
  Bytes quarantined = 0;
  for (const v1::Gpu& gpu : status.gpus()) quarantined += gpu.memory().quarantined_bytes();
  EXPECT_EQ(quarantined, 64 * kMiB);
  EXPECT_EQ(status.session_count(), 0u);
  AwaitConnection(client);
  EXPECT_THAT(client.Ask(std::string("device ") + kSize), HasSubstr("SESSION_ENDED"));
  // A daemon that ends in good order lives well with them: the next has them back.
  EXPECT_EQ(node.daemon.Stop(), 0);
  node.daemon.Start();
  AwaitConnection(client);
  EXPECT_EQ(client.Ask("leases"), "mine");
  // Or an administrator ends them.
  for (int life = 0; life < 3; ++life) node.Restart();
  RawClient root(node.daemon.runtime_dir());
  EXPECT_TRUE(Worked(root.Release(lease, true)));
  client.Kill();
  EXPECT_TRUE(Eventually([&] { return node.NotFree() == 0; }));
}

// Speaks the keeper's protocol as a daemon would.
class FormerDaemon {
 public:
  explicit FormerDaemon(const std::string& runtime_dir);
  void Put(std::uint64_t key, const std::string& record, const std::vector<int>& descriptors);

 private:
  UniqueFd socket_;
};

FormerDaemon::FormerDaemon(const std::string& runtime_dir) {
  socket_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (runtime_dir + "/keeper.sock").c_str(),
               sizeof address.sun_path - 1);
  GPULEASE_CHECK(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
                 "connect");
  GPULEASE_CHECK(SendMessage(socket_.get(), BytesOf(keeper::Hello{}), {}).ok(), "hello");
}

void FormerDaemon::Put(std::uint64_t key, const std::string& record,
                       const std::vector<int>& descriptors) {
  std::uint64_t sequence = 0;
  const Status put = keeper::SendEntry(
      {.kind = keeper::Kind::kPut, .key = key, .record = record, .descriptors = descriptors},
      sequence, [&](std::span<const std::byte> bytes, std::span<const int> fds) {
        return SendMessage(socket_.get(), bytes, fds);
      });
  GPULEASE_CHECK(put.ok(), "put");
}

TEST(RestartTest, RecordsThatCannotBeReadStayWithTheKeeperAndAreNamed) {
  TemporaryDirectory folder;
  KeeperProcess keeper(folder.path() + "/run");
  {
    FormerDaemon former(folder.path() + "/run");
    const UniqueFd file(memfd_create("chunk", 0));
    former.Put(3ull << 56 | 5, "what is this?", {file.get()});
    former.Put(2ull << 56 | 6, std::string(100'000, 'x'), {});
    former.Put(9ull << 56 | 7, "of a kind that is not known", {});
  }
  const std::size_t descriptors = keeper.open_descriptors();
  DaemonProcess daemon({.runtime_dir = folder.path() + "/run"});
  EXPECT_THAT(daemon.log(), HasSubstr("set aside with the keeper: lease 5: it is too short"));
  EXPECT_THAT(daemon.log(), HasSubstr("set aside with the keeper: session 6: it is no record"));
  EXPECT_THAT(daemon.log(), HasSubstr("3 of the keeper's entries could not be taken up"));
  EXPECT_GE(keeper.open_descriptors(), descriptors - 1) << "the former connection is closed";
  const v1::GetNodeResponse status = RawClient(daemon.runtime_dir()).Node();
  EXPECT_TRUE(status.keeper().connected());
  EXPECT_EQ(status.keeper().set_aside(), 3u);
  ClientProcess client(daemon.runtime_dir());
  client.Connect();
  EXPECT_THAT(client.Ask("device 4096"), HasSubstr("offered"));
}

TEST(RestartTest, AKeeperWithFewerFilesThanTheDaemonIsRefused) {
  TemporaryDirectory folder;
  KeeperProcess keeper(folder.path() + "/run");
  rlimit limit = {1000, 1000};
  prlimit(keeper.pid(), RLIMIT_NOFILE, &limit, nullptr);
  DaemonProcess daemon({.runtime_dir = folder.path() + "/run"});
  EXPECT_THAT(daemon.log(), HasSubstr("the keeper may have 1000 open files"));
}

}  // namespace
}  // namespace gpulease::e2e
