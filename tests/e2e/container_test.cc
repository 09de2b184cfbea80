// SPDX-License-Identifier: Apache-2.0
//
// Clients in containers: other PID, mount and user namespaces, other cgroups. Everybody is root
// there, and nobody is root here.
#include "tests/e2e/container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

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
using ::testing::StartsWith;

constexpr std::uint32_t kDaemon = 1234;

// What the keeper answers to a daemon's Hello, and whether that is for good; system calls alone, as
// after a fork.
struct KeeperAnswer {
  keeper::Kind kind{};
  bool for_good = false;
};
KeeperAnswer AnswerOfKeeper(const char* path) {
  const int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  const keeper::Hello hello;
  char answer[4096];
  if (connect(peer, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  static_cast<void>(send(peer, &hello, sizeof hello, MSG_NOSIGNAL));
  ssize_t size = recv(peer, answer, sizeof answer, 0);
  // Who closes with our Hello unread has it reported first, and what he said next.
  if (size < 0 && errno == ECONNRESET) size = recv(peer, answer, sizeof answer, 0);
  if (size < static_cast<ssize_t>(sizeof(keeper::Header))) return {};
  const auto bytes = std::as_bytes(std::span(answer, static_cast<std::size_t>(size)));
  const auto refused = ReadPacket<keeper::Refused>(bytes);
  return {keeper::KindOf(bytes).value_or(keeper::Kind{}), refused && refused->for_good != 0};
}

class ContainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoContainers(); !why.empty()) GTEST_SKIP() << why;
    daemon_ = std::make_unique<DaemonProcess>(DaemonOptions{.uid = kDaemon});
  }
  ClientProcess Start(ContainerOptions container) {
    ClientProcess client(daemon_->runtime_dir(), {.container = std::move(container)});
    client.Connect();
    return client;
  }
  // The session of a client, as root of the machine sees it.
  v1::Session SessionOf(const ClientProcess& client) {
    RawClient root(daemon_->runtime_dir());
    const auto reply = root.ListSessions();
    for (const v1::Session& session : reply.message.sessions()) {
      if (session.pid() == client.pid()) return session;
    }
    return {};
  }
  static std::string Id(const std::string& answer) {
    EXPECT_NE(ClientProcess::LeaseOf(answer), 0u) << answer;
    return std::to_string(ClientProcess::LeaseOf(answer));
  }

  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(ContainerTest, AClientOfOtherNamespacesLeasesAndShares) {
  ClientProcess inside = Start({.root_uid = 100'000});
  ClientProcess outside(daemon_->runtime_dir(), {.uid = 1000});
  outside.Connect();
  for (const std::string kind : {"device", "host"}) {
    const std::string mine = Id(inside.Ask(kind + " 4000000 name=mine-" + kind + " mode=644"));
    ASSERT_EQ(inside.Ask("map " + mine), "ok");
    EXPECT_EQ(inside.Ask("check " + mine + " 0"), "yes");
    ASSERT_EQ(inside.Ask("fill " + mine + " 77"), "ok");
    ASSERT_EQ(Id(outside.Ask("open " + mine + " ro")), mine);
    ASSERT_EQ(outside.Ask("map " + mine + " ro"), "ok");
    EXPECT_EQ(outside.Ask("check " + mine + " 77"), "yes");
    EXPECT_THAT(outside.Ask("open " + mine + " rw"), StartsWith("error PERMISSION_DENIED"));

    const std::string theirs = Id(outside.Ask(kind + " 4000000 name=theirs-" + kind + " mode=644"));
    ASSERT_EQ(outside.Ask("map " + theirs), "ok");
    ASSERT_EQ(outside.Ask("fill " + theirs + " 78"), "ok");
    EXPECT_THAT(inside.Ask("open 1000/theirs-" + kind + " ro"),
                StartsWith("error PERMISSION_DENIED"))
        << "1000 is another user in there";
    ASSERT_EQ(Id(inside.Ask("open 1000@/theirs-" + kind + " ro")), theirs);
    ASSERT_EQ(inside.Ask("map " + theirs + " ro"), "ok");
    EXPECT_EQ(inside.Ask("check " + theirs + " 78"), "yes");
  }
}

TEST_F(ContainerTest, ItsPidIsTheOneThatTheMachineHas) {
  ClientProcess inside = Start({.root_uid = 100'000});
  const v1::Session session = SessionOf(inside);
  ASSERT_NE(session.session_id(), 0u) << "no session has its PID";
  EXPECT_EQ(session.uid(), 100'000u);
  EXPECT_NE(session.realm(), "");
  EXPECT_THAT(session.user(), StartsWith("100000@"));
  const std::string id = Id(inside.Ask("device 2097152"));
  RawClient root(daemon_->runtime_dir());
  const v1::Lease lease = root.GetLease(ClientProcess::LeaseOf(id)).message.lease();
  ASSERT_EQ(lease.holders_size(), 1);
  EXPECT_EQ(lease.holders(0).pid(), inside.pid());
  EXPECT_EQ(lease.realm(), session.realm());
}

TEST_F(ContainerTest, WhenItDiesItsMemoryComesBack) {
  ClientProcess inside = Start({.root_uid = 100'000});
  const std::string id = Id(inside.Ask("device 4000000"));
  ASSERT_EQ(inside.Ask("map " + id), "ok");
  inside.Kill();
  RawClient root(daemon_->runtime_dir());
  EXPECT_TRUE(Eventually([&] { return IsAllFree(root.Node()); }));
}

TEST_F(ContainerTest, RootOfOneIsNotRootOfTheOther) {
  // As container runtimes name their cgroups; without user namespaces, as they do by default.
  const Cgroup one(std::string("gpulease-test-") + std::string(40, 'a'));
  const Cgroup two(std::string("gpulease-test-") + std::string(40, 'b'));
  if (one.path().empty() || two.path().empty()) GTEST_SKIP() << "no cgroups can be made here";
  {
    ClientProcess a = Start({.cgroup = one.path()});
    ClientProcess b = Start({.cgroup = two.path()});
    ClientProcess also_b = Start({.cgroup = two.path()});
    EXPECT_EQ(SessionOf(a).uid(), 0u);
    EXPECT_EQ(SessionOf(a).realm(), one.path());
    EXPECT_EQ(SessionOf(also_b).realm(), two.path());

    const std::string id = Id(a.Ask("device 2097152 name=weights mode=660"));
    Id(b.Ask("device 2097152 name=weights mode=600"));  // names are each one's own
    std::string denied = b.Ask("open " + id + " ro");
    EXPECT_THAT(denied, StartsWith("error PERMISSION_DENIED"));
    denied.replace(denied.find(id), id.size(), "123456789");
    EXPECT_EQ(denied, b.Ask("open 123456789 ro"));
    const std::string by_name = "open 0@" + one.path() + "/";
    denied = b.Ask(by_name + "weights ro");
    denied.replace(denied.find("weights"), 7, "nothing");
    EXPECT_EQ(denied, b.Ask(by_name + "nothing ro"));
    EXPECT_THAT(b.Ask("release " + id), StartsWith("error NOT_FOUND"));
    EXPECT_EQ(b.Ask("leases"), "weights");
    EXPECT_EQ(b.Ask("sessions"), "2");
    EXPECT_NE(ClientProcess::LeaseOf(also_b.Ask("open weights rw")), 0u)
        << "one container's processes are of one user";

    const std::string shared = Id(a.Ask("device 2097152 name=shared mode=666"));
    EXPECT_EQ(Id(b.Ask(by_name + "shared rw")), shared) << "what others may, they may";
  }
}

TEST_F(ContainerTest, RootOfAContainerDoesNotAdminister) {
  DaemonProcess daemon({.config = "admin_group: \"root\"", .uid = kDaemon});
  ClientProcess owner(daemon.runtime_dir(), {.uid = 1000});
  owner.Connect();
  const std::string id = Id(owner.Ask("device 2097152 name=private mode=600"));
  RawClient root(daemon.runtime_dir());
  root.Connect();
  const auto [roots, chunks] = root.MustAllocate(DeviceSpec(2 * kMiB, "roots"));
  // Without a user namespace: its uid and its groups are 0 for the kernel.
  ClientProcess inside(daemon.runtime_dir(), {.groups = {0}, .container = ContainerOptions()});
  inside.Connect();
  EXPECT_THAT(inside.Ask("release " + id), StartsWith("error NOT_FOUND"));
  EXPECT_THAT(inside.Ask("open " + id + " ro"), StartsWith("error PERMISSION_DENIED"));
  EXPECT_THAT(inside.Ask("open 0@/roots ro"), StartsWith("error PERMISSION_DENIED"));
  EXPECT_EQ(inside.Ask("leases"), "none");
  EXPECT_EQ(inside.Ask("sessions"), "1");
  EXPECT_THAT(inside.Ask("device 1 gid=4711"), HasSubstr("REASON_BAD_FIELD"));
  EXPECT_EQ(root.ListLeases().message.leases_size(), 2) << "root of the machine sees all";
  EXPECT_TRUE(root.Release(ClientProcess::LeaseOf(id)).ok());
}

TEST_F(ContainerTest, TheKeeperServesNoContainer) {
  // Seen: a container's root, which may take the keeper's uid, was given everybody's memory.
  TemporaryDirectory folder;
  KeeperProcess keeper(folder.path() + "/run");
  const std::string path = folder.path() + "/run/keeper.sock";
  for (const bool inside : {false, true}) {
    const pid_t child = inside ? ForkIntoContainer({}) : fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const KeeperAnswer answer = AnswerOfKeeper(path.c_str());
      _exit(static_cast<int>(answer.kind) | (answer.for_good ? 0x80 : 0));
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    // Seen: a daemon that is refused for good tried for ten seconds before it served anybody.
    EXPECT_EQ(WEXITSTATUS(status), inside ? static_cast<int>(keeper::Kind::kRefused) | 0x80
                                          : static_cast<int>(keeper::Kind::kWelcome));
  }
}

TEST_F(ContainerTest, ARealmMakesContainersOneAnothersUsers) {
  DaemonProcess daemon(
      {.config = "realms { name: \"team\" cgroup_prefix: \"/\" }", .uid = kDaemon});
  ClientProcess a(daemon.runtime_dir(), {.container = ContainerOptions()});
  ClientProcess b(daemon.runtime_dir(), {.container = ContainerOptions()});
  a.Connect();
  b.Connect();
  const std::string id = Id(a.Ask("device 2097152 name=weights mode=600"));
  EXPECT_EQ(Id(b.Ask("open weights rw")), id);
  ClientProcess outside(daemon.runtime_dir(), {.uid = 1000});
  outside.Connect();
  EXPECT_THAT(outside.Ask("open 0@team/weights ro"), StartsWith("error PERMISSION_DENIED"));
  EXPECT_THAT(outside.Ask("open 0/weights ro"), StartsWith("error PERMISSION_DENIED"));
}

TEST_F(ContainerTest, ADaemonThatDoesNotSeeItsClientsPidsTrustsNoNumber) {
  // In a PID namespace of its own, as in a container without the machine's PIDs.
  DaemonProcess daemon({.container = ContainerOptions()});
  RawClient root(daemon.runtime_dir());
  ClientProcess one(daemon.runtime_dir(), {.uid = 1000});
  ClientProcess two(daemon.runtime_dir(), {.uid = 1000});
  const std::string dialled = one.Ask("dial");
  ASSERT_EQ(dialled, "ok");
  if (const std::string hello = one.Ask("hello"); hello.starts_with("error")) {
    // A kernel that cannot tell such processes apart: they are refused.
    EXPECT_THAT(hello, HasSubstr("PID namespace"));
    return;
  }
  two.Connect();
  const std::string id = Id(one.Ask("device 2097152 name=weights mode=600"));
  ASSERT_EQ(one.Ask("map " + id), "ok");
  EXPECT_NE(ClientProcess::LeaseOf(one.Ask("open weights rw")), 0u);
  EXPECT_THAT(two.Ask("open " + id + " ro"), StartsWith("error PERMISSION_DENIED"))
      << "of the same user, as far as a number says";
  EXPECT_THAT(two.Ask("open weights ro"), StartsWith("error NOT_FOUND"));
  EXPECT_EQ(one.Ask("sessions"), "1");
  EXPECT_EQ(root.ListLeases().message.leases_size(), 0) << "nor is root known to be root";
  const std::string shared = Id(one.Ask("device 2097152 mode=666"));
  EXPECT_EQ(Id(two.Ask("open " + shared + " rw")), shared);
  one.Kill();
  ASSERT_EQ(two.Ask("drop " + shared), "ok");
  EXPECT_EQ(two.Ask("close " + shared), "ok");
  EXPECT_TRUE(Eventually([&] { return IsAllFree(root.Node()); }))
      << "its death is seen all the same";
}

}  // namespace
}  // namespace gpulease::e2e
