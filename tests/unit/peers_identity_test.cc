// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "daemon/peers/identity.h"

namespace gpulease::peers {
namespace {

UniqueFd PidfdOf(pid_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

// A listener without a place in the file system, and connections to it.
class IdentityTest : public ::testing::Test {
 protected:
  IdentityTest() : listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_un any{.sun_family = AF_UNIX};
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(sa_family_t)),
              0);
    EXPECT_EQ(listen(listener_.get(), 5), 0);
    length_ = sizeof address_;
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address_), &length_);
  }
  UniqueFd Connect() {
    UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&address_), length_), 0);
    return client;
  }
  UniqueFd Accept() { return UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

  UniqueFd listener_;
  sockaddr_un address_{};
  socklen_t length_ = 0;
};

TEST_F(IdentityTest, APeerIsWhoTheKernelSays) {
  const UniqueFd client = Connect();
  const UniqueFd accepted = Accept();
  Result<Identity> identity = IdentifyPeer(accepted.get());
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->peer.pid, getpid());
  EXPECT_EQ(identity->peer.user.uid, geteuid());
  EXPECT_EQ(identity->peer.user.gid, getegid());
  if (!identity->pidfd) {
    ASSERT_TRUE(OpenPidfd(*identity).ok());
  }
  EXPECT_NE(identity->peer.process, 0u);
  EXPECT_FALSE(identity->peer.program.empty());
}

TEST_F(IdentityTest, AProcessOfThisMachineIsInNoContainer) {
  const UniqueFd client = Connect();
  const UniqueFd accepted = Accept();
  const Result<Identity> identity = IdentifyPeer(accepted.get());
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->peer.user.realm, "");
  EXPECT_EQ(identity->peer.user.root, geteuid() == 0);
}

TEST_F(IdentityTest, RootWithAPidNamespaceOfItsOwnIsOfAContainer) {
  const pid_t parent = fork();
  if (parent == 0) {
    if (unshare(CLONE_NEWPID) != 0) _exit(1);
    const pid_t child = fork();
    if (child == 0) {
      const UniqueFd connection = Connect();
      for (;;) pause();
    }
    _exit(child > 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(parent, &status, 0);
  if (status != 0) GTEST_SKIP() << "this process may not make PID namespaces";
  const UniqueFd accepted = Accept();
  Result<Identity> identity = IdentifyPeer(accepted.get());
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  if (!identity->pidfd) {
    ASSERT_TRUE(OpenPidfd(*identity).ok());
  }
  EXPECT_NE(identity->peer.user.realm, "");
  EXPECT_FALSE(identity->peer.user.root);
  kill(identity->peer.pid, SIGKILL);
}

TEST_F(IdentityTest, RootOfAUserNamespaceIsNotRootOfTheMachine) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    if (unshare(CLONE_NEWUSER) != 0) _exit(1);
    // As unshare --map-root-user does, when root calls it: uid 0 is uid 0 outside.
    const UniqueFd map(open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC));
    if (write(map.get(), "0 0 1", 5) < 0) _exit(1);
    const UniqueFd connection = Connect();
    char byte;
    _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(ends[0]);
  pollfd ready{listener_.get(), POLLIN, 0};
  if (poll(&ready, 1, 2000) != 1) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ends[1]);
    GTEST_SKIP() << "this process may not make user namespaces that map root";
  }
  const UniqueFd accepted = Accept();
  const Result<Identity> identity = IdentifyPeer(accepted.get());
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->peer.user.uid, 0u);
  EXPECT_FALSE(identity->peer.user.root);
  close(ends[1]);
  waitpid(child, nullptr, 0);
}

TEST_F(IdentityTest, RootWithoutItsCapabilitiesIsNotRootOfTheMachine) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to drop its capabilities";
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    // As a container has it that shares the machine's PIDs: uid 0, a few capabilities.
    struct {
      std::uint32_t version = 0x20080522;
      int pid = 0;
    } header;
    const std::uint32_t none[6] = {};
    if (syscall(SYS_capset, &header, none) != 0) _exit(1);
    const UniqueFd connection = Connect();
    char byte;
    _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(ends[0]);
  const UniqueFd accepted = Accept();
  const Result<Identity> identity = IdentifyPeer(accepted.get());
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->peer.user.uid, 0u);
  EXPECT_FALSE(identity->peer.user.root);
  close(ends[1]);
  waitpid(child, nullptr, 0);
}

TEST(ContainerTest, IsWhatARuntimeOrSystemdMadeForIt) {
  const std::string id(64, 'a');
  const std::string docker = "/system.slice/docker-" + id + ".scope";
  EXPECT_EQ(ContainerOf(docker), docker);
  EXPECT_EQ(ContainerOf(docker + "/init.scope"), docker) << "it may arrange itself below";
  EXPECT_EQ(ContainerOf("/docker/" + id + "/x"), "/docker/" + id);
  EXPECT_EQ(ContainerOf("/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope"),
            "/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope");
  EXPECT_EQ(ContainerOf("/kubepods/burstable/pod1-2/" + id), "/kubepods/burstable/pod1-2/" + id);
  EXPECT_EQ(ContainerOf("/machine.slice/machine-x.scope/payload"),
            "/machine.slice/machine-x.scope");
  EXPECT_EQ(ContainerOf("/lxc.payload.c1/system.slice/a.service"), "/lxc.payload.c1");
  EXPECT_EQ(ContainerOf("/user.slice/user-1000.slice/user@1000.service/libpod-" + id + ".scope"),
            "/user.slice/user-1000.slice")
      << "what one user makes at will is not told apart";
  EXPECT_EQ(ContainerOf("/mine/a"), "/mine/a");
  EXPECT_EQ(ContainerOf("/"), "");
  EXPECT_EQ(ContainerOf(""), "");
}

TEST_F(IdentityTest, WhatAProcessCallsItselfIsText) {
  // Seen: one process with such a name, and no client could read the list of sessions.
  char before[16];
  prctl(PR_GET_NAME, before);
  prctl(PR_SET_NAME, "a\xff\x1b[31m");
  const UniqueFd client = Connect();
  const UniqueFd accepted = Accept();
  const Result<Identity> identity = IdentifyPeer(accepted.get());
  prctl(PR_SET_NAME, before);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->peer.program, "a\\xff\\x1b[31m");
}

TEST_F(IdentityTest, ConnectionsOfOneProcessAreOfOneProcessAndAForkedChildIsAnother) {
  const UniqueFd first = Connect();
  const UniqueFd second = Connect();
  const auto number = [&]() -> std::uint64_t {
    const UniqueFd accepted = Accept();
    Result<Identity> identity = IdentifyPeer(accepted.get());
    if (!identity.ok() || (!identity->pidfd && !OpenPidfd(*identity).ok())) return 0;
    return identity->peer.process;
  };
  const std::uint64_t mine = number();
  EXPECT_NE(mine, 0u);
  EXPECT_EQ(number(), mine);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    const UniqueFd connection = Connect();
    char byte;
    close(ends[1]);
    _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  const std::uint64_t childs = number();
  EXPECT_NE(childs, 0u);
  EXPECT_NE(childs, mine);
  close(ends[0]);
  close(ends[1]);
  waitpid(child, nullptr, 0);
}

TEST_F(IdentityTest, AProcessThatIsDeadByNowIsNobody) {
  const pid_t child = fork();
  if (child == 0) {
    const UniqueFd connection = Connect();
    _exit(connection ? 0 : 1);
  }
  waitpid(child, nullptr, 0);
  const UniqueFd accepted = Accept();
  Result<Identity> identity = IdentifyPeer(accepted.get());
  EXPECT_FALSE(identity.ok() && (identity->pidfd || OpenPidfd(*identity).ok()));
}

TEST_F(IdentityTest, APidfdOfAnotherProcessIsNotAdopted) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  Identity identity;
  identity.peer.pid = getpid();
  const Status adopted = AdoptPidfd(identity, PidfdOf(child));
  ASSERT_FALSE(adopted.ok());
  EXPECT_EQ(adopted.error().code, Code::kPermissionDenied);
  EXPECT_FALSE(AdoptPidfd(identity, UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC))).ok());
  EXPECT_TRUE(AdoptPidfd(identity, PidfdOf(getpid())).ok());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(IdentityTest, APidfdOfADeadProcessIsNotAdopted) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  UniqueFd pidfd = PidfdOf(child);
  waitpid(child, nullptr, 0);
  Identity identity;
  identity.peer.pid = child;
  EXPECT_FALSE(AdoptPidfd(identity, std::move(pidfd)).ok());
}

}  // namespace
}  // namespace gpulease::peers
