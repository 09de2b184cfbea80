// SPDX-License-Identifier: Apache-2.0
//
// The handle socket: who gets a session, and who loses his connection.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>

#include "base/descriptor_channel.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() : daemon_({.config = "session_grace_ms: 60000"}), client_(daemon_.runtime_dir()) {}
  std::uint32_t Sessions() { return client_.Node().session_count(); }

  DaemonProcess daemon_;
  RawClient client_;
};

TEST_F(SessionTest, AHelloIsAnsweredByAWelcome) {
  ASSERT_TRUE(client_.Dial().ok());
  const auto welcome = client_.Hello();
  ASSERT_TRUE(welcome.ok()) << welcome.error().message;
  EXPECT_NE(welcome->session_id, 0u);
  EXPECT_LT(welcome->session_id, 1ull << 53);
  EXPECT_EQ(welcome->flags, handle::kWelcomeSimulated);
  EXPECT_EQ(welcome->grace_ms, 60'000u);
  EXPECT_EQ(std::string(welcome->daemon_version), client_.Node().version());
  EXPECT_EQ(std::string(welcome->simulated_directory), daemon_.runtime_dir() + "/simulated");
  const auto sessions = client_.ListSessions();
  ASSERT_TRUE(Worked(sessions));
  ASSERT_EQ(sessions.message.sessions_size(), 1);
  const v1::Session& session = sessions.message.sessions(0);
  EXPECT_EQ(session.session_id(), welcome->session_id);
  EXPECT_EQ(session.pid(), getpid());
  EXPECT_EQ(session.uid(), geteuid());
  EXPECT_EQ(session.program(), "raw-client");
  EXPECT_EQ(session.client_version(), "raw");
  EXPECT_TRUE(session.connected());
}

TEST_F(SessionTest, CallsWithoutASessionAreRefusedAndNameIt) {
  EXPECT_TRUE(Refused(client_.Allocate({DeviceSpec(1)}), grpc::StatusCode::FAILED_PRECONDITION,
                      v1::REASON_SESSION_ENDED));
  client_.set_session_id(4711);
  EXPECT_TRUE(Refused(client_.Allocate({DeviceSpec(1)}), grpc::StatusCode::FAILED_PRECONDITION,
                      v1::REASON_SESSION_ENDED));
  EXPECT_TRUE(
      Refused(client_.Open("x"), grpc::StatusCode::FAILED_PRECONDITION, v1::REASON_SESSION_ENDED));
  EXPECT_TRUE(
      Refused(client_.Close(1), grpc::StatusCode::FAILED_PRECONDITION, v1::REASON_SESSION_ENDED));
  EXPECT_TRUE(
      Refused(client_.Release(1), grpc::StatusCode::FAILED_PRECONDITION, v1::REASON_SESSION_ENDED));
  EXPECT_TRUE(
      Refused(client_.Await(1), grpc::StatusCode::FAILED_PRECONDITION, v1::REASON_SESSION_ENDED));
  EXPECT_TRUE(Worked(client_.GetNode())) << "to look needs no session";
  EXPECT_TRUE(Worked(client_.ListLeases()));
}

TEST_F(SessionTest, AnotherProcessesSessionIsRefused) {
  client_.Connect();
  const auto held = client_.MustAllocate(DeviceSpec(1, "mine"));
  ClientProcess stranger(daemon_.runtime_dir());
  stranger.Connect();
  ASSERT_EQ(stranger.Ask("session " + std::to_string(client_.session_id())), "ok");
  const std::string id = std::to_string(held.first.lease_id());
  EXPECT_THAT(stranger.Ask("device 1"), HasSubstr("REASON_SESSION_ENDED"));
  EXPECT_THAT(stranger.Ask("open mine rw"), HasSubstr("REASON_SESSION_ENDED"));
  EXPECT_THAT(stranger.Ask("release " + id), HasSubstr("REASON_SESSION_ENDED"));
  EXPECT_THAT(stranger.Ask("close " + id), HasSubstr("REASON_SESSION_ENDED"));
  EXPECT_EQ(client_.GetLease("mine").message.lease().state(), v1::LEASE_STATE_LEASED);
}

TEST_F(SessionTest, AForkedChildIsNotItsParentsSession) {
  // The child must not touch gRPC, so it says all on the handle socket: its resumption of the
  // parent's session is a session of its own.
  client_.Connect();
  const auto held = client_.MustAllocate(DeviceSpec(1, "kept"));
  const std::uint64_t parents = client_.session_id();
  client_.HangUp();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::uint64_t got = 0;
    if (client_.Dial().ok()) {
      if (const auto welcome = client_.Hello(parents); welcome.ok()) got = welcome->session_id;
    }
    _exit(write(ends[1], &got, sizeof got) == sizeof got ? 0 : 1);
  }
  close(ends[1]);
  std::uint64_t got = 0;
  ASSERT_EQ(read(ends[0], &got, sizeof got), static_cast<ssize_t>(sizeof got));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  EXPECT_NE(got, 0u);
  EXPECT_NE(got, parents);
  // The parent still has its own.
  ASSERT_TRUE(client_.Dial().ok());
  const auto resumed = client_.Hello(parents);
  ASSERT_TRUE(resumed.ok());
  EXPECT_EQ(resumed->session_id, parents);
  EXPECT_TRUE(resumed->flags & handle::kWelcomeResumed);
}

TEST_F(SessionTest, ALostConnectionIsResumedWithItsLeases) {
  client_.Connect();
  const auto held = client_.MustAllocate(DeviceSpec(1, "kept"));
  const std::uint64_t session = client_.session_id();
  client_.HangUp();
  EXPECT_TRUE(Eventually([&] { return !client_.ListSessions().message.sessions(0).connected(); }));
  EXPECT_TRUE(Refused(client_.Allocate({DeviceSpec(1)}), grpc::StatusCode::UNAVAILABLE,
                      v1::REASON_HAND_OVER))
      << "there is nowhere to send descriptors to";
  ASSERT_TRUE(client_.Dial().ok());
  const auto resumed = client_.Hello(session);
  ASSERT_TRUE(resumed.ok());
  EXPECT_EQ(resumed->session_id, session);
  EXPECT_EQ(Sessions(), 1u);
  EXPECT_EQ(client_.GetLease("kept").message.lease().state(), v1::LEASE_STATE_LEASED);
  EXPECT_TRUE(Worked(client_.Allocate({DeviceSpec(1)})));
}

TEST_F(SessionTest, AConnectedSessionIsNotTakenOver) {
  client_.Connect();
  RawClient second(daemon_.runtime_dir());
  ASSERT_TRUE(second.Dial().ok());
  const auto welcome = second.Hello(client_.session_id());
  ASSERT_TRUE(welcome.ok());
  EXPECT_NE(welcome->session_id, client_.session_id());
  EXPECT_FALSE(welcome->flags & handle::kWelcomeResumed);
  EXPECT_TRUE(Worked(client_.Allocate({DeviceSpec(1)})));
}

TEST_F(SessionTest, AnotherVersionIsRefusedWithBothNames) {
  ASSERT_TRUE(client_.Dial().ok());
  handle::Hello hello;
  hello.header.version = 99;
  ASSERT_TRUE(client_.SendRaw(handle::BytesOf(hello)).ok());
  auto message = client_.ReceiveRaw();
  ASSERT_TRUE(message.ok()) << message.error().message;
  ASSERT_EQ(handle::KindOf(message->first), handle::Kind::kRefused);
  const auto refused = handle::Parse<handle::Refused>(message->first);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->message, HasSubstr("version"));
  EXPECT_TRUE(client_.IsHungUpOn());
}

TEST_F(SessionTest, GarbageDropsItsSenderAndNobodyElse) {
  client_.Connect();
  const auto held = client_.MustAllocate(DeviceSpec(1));
  std::mt19937_64 random(20240229);
  const auto bytes_of = [&](std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  };
  const auto dropped = [&](std::span<const std::byte> bytes, std::span<const int> descriptors,
                           bool after_hello) {
    RawClient peer(daemon_.runtime_dir());
    if (!peer.Dial().ok()) return false;
    if (after_hello && !peer.Hello().ok()) return false;
    // Where the kernel can, it does not take descriptors for the daemon.
    if (!peer.SendRaw(bytes, descriptors).ok()) return errno == EPERM && !descriptors.empty();
    return peer.IsHungUpOn();
  };
  for (const bool after_hello : {false, true}) {
    for (const std::size_t size : {1u, 7u, 8u, 32u, 80u, 512u, 513u, 4096u}) {
      EXPECT_TRUE(dropped(bytes_of(size), {}, after_hello)) << size;
      // With a good header and nonsense behind it.
      for (std::uint16_t kind = 0; kind < 7; ++kind) {
        std::vector<std::byte> bytes = bytes_of(size);
        handle::Header header;
        header.kind = static_cast<handle::Kind>(kind);
        if (bytes.size() < sizeof header) continue;
        std::memcpy(bytes.data(), &header, sizeof header);
        // Of the right size, these are a Hello and a Taken of nothing: no garbage.
        if (kind == 1 && size == sizeof(handle::Hello) && !after_hello) continue;
        if (kind == 5 && size == sizeof(handle::Taken) && after_hello) continue;
        EXPECT_TRUE(dropped(bytes, {}, after_hello)) << size << " bytes of kind " << kind;
      }
    }
    // Descriptors that nobody asked for.
    std::array<int, 2> files = {open("/dev/null", O_RDONLY | O_CLOEXEC), 0};
    files[1] = files[0];
    handle::Taken taken;
    EXPECT_TRUE(dropped(handle::BytesOf(taken), std::span(files).first(1), after_hello));
    handle::Hello hello;
    EXPECT_TRUE(dropped(handle::BytesOf(hello), files, after_hello));
    std::vector<int> many(kMaxDescriptorsPerMessage, files[0]);
    EXPECT_TRUE(dropped(handle::BytesOf(hello), many, after_hello));
    close(files[0]);
  }
  EXPECT_TRUE(daemon_.running());
  EXPECT_TRUE(Worked(client_.Allocate({DeviceSpec(1)}))) << "the others go on";
}

TEST_F(SessionTest, ASecondHelloDropsTheConnection) {
  client_.Connect();
  ASSERT_TRUE(client_.SendRaw(handle::BytesOf(handle::Hello())).ok());
  EXPECT_TRUE(client_.IsHungUpOn());
}

TEST_F(SessionTest, TextsOfAClientAreMadePrintable) {
  ASSERT_TRUE(client_.Dial().ok());
  handle::Hello hello;
  std::memset(hello.program, 0x1b, sizeof hello.program);  // without its end
  std::memset(hello.client_version, 0xff, sizeof hello.client_version);
  ASSERT_TRUE(client_.SendRaw(handle::BytesOf(hello)).ok());
  ASSERT_TRUE(client_.ReceiveRaw().ok());
  const auto sessions = client_.ListSessions();
  ASSERT_EQ(sessions.message.sessions_size(), 1);
  EXPECT_EQ(sessions.message.sessions(0).program(), std::string(32, '?'));
  EXPECT_EQ(sessions.message.sessions(0).client_version(), std::string(32, '?'));
}

TEST_F(SessionTest, AConnectionThatSaysNothingIsClosedInTheEnd) {
  ASSERT_TRUE(client_.Dial().ok());
  EXPECT_TRUE(client_.IsHungUpOn());
}

TEST_F(SessionTest, AWrongPidfdIsNotBelieved) {
  // Where the kernel knows the process itself, what is sent along is ignored; else it must be the
  // sender's.
  ASSERT_TRUE(client_.Dial().ok());
  const UniqueFd init(static_cast<int>(syscall(SYS_pidfd_open, 1, 0)));
  if (!init) GTEST_SKIP() << "pidfd_open of another process does not work here";
  const int descriptor = init.get();
  if (!client_.SendRaw(handle::BytesOf(handle::Hello()), {&descriptor, 1}).ok()) {
    EXPECT_EQ(errno, EPERM) << "the kernel does not take it for the daemon";
    return;
  }
  auto answer = client_.ReceiveRaw();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  if (handle::KindOf(answer->first) == handle::Kind::kWelcome) {
    EXPECT_EQ(client_.ListSessions().message.sessions(0).pid(), getpid());
  } else {
    EXPECT_EQ(handle::KindOf(answer->first), handle::Kind::kRefused);
  }
}

TEST_F(SessionTest, ADescriptorOfAStrangerDoesNotReachTheDaemon) {
  // To close one may take as long as the stranger likes, and all wait for the thread that does.
  for (const auto& [path, type] : {std::pair(daemon_.handle_socket(), SOCK_SEQPACKET),
                                   std::pair(daemon_.grpc_socket(), SOCK_STREAM)}) {
    const UniqueFd peer(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    int rights = 0;
    socklen_t length = sizeof rights;
    if (getsockopt(peer.get(), SOL_SOCKET, handle::kPassRights, &rights, &length) != 0)
      GTEST_SKIP() << "this kernel has no SO_PASSRIGHTS";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(connect(peer.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const int descriptor = peer.get();
    EXPECT_FALSE(SendMessage(peer.get(), handle::BytesOf(handle::Hello()), {&descriptor, 1}).ok());
    EXPECT_EQ(errno, EPERM);
  }
}

TEST_F(SessionTest, NobodyWhoIsKnownIsEverUnauthenticated) {
  // Connections come and go while calls are made on each at once.
  for (int round = 0; round < 200; ++round) {
    RawClient client(daemon_.runtime_dir());
    const auto reply = client.GetNode();
    ASSERT_TRUE(Worked(reply)) << "round " << round;
  }
}

TEST_F(SessionTest, ADeadProcessesSessionEndsAndItsConnectionsWithIt) {
  std::uint64_t lease = 0;
  {
    ClientProcess process(daemon_.runtime_dir());
    process.Connect();
    lease = ClientProcess::LeaseOf(process.Ask("device 2097152 name=gone"));
    ASSERT_NE(lease, 0u);
    EXPECT_EQ(Sessions(), 1u);
  }
  EXPECT_TRUE(Eventually([&] { return Sessions() == 0; }));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(client_.Node()); }));
  EXPECT_TRUE(
      Refused(client_.GetLease(lease), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
}

TEST(SessionLimitTest, SessionsOfAUserAreBounded) {
  DaemonProcess daemon({.config = "sessions_per_user: 2"});
  RawClient one(daemon.runtime_dir()), two(daemon.runtime_dir()), three(daemon.runtime_dir());
  one.Connect();
  two.Connect();
  ASSERT_TRUE(three.Dial().ok());
  const auto refused = three.Hello();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_EQ(refused.error().reason, Reason::kSessionLimit);
}

TEST(SessionGraceTest, ASessionThatDoesNotComeBackEnds) {
  DaemonProcess daemon({.config = "session_grace_ms: 50"});
  RawClient client(daemon.runtime_dir());
  client.Connect();
  auto [lease, chunks] = client.MustAllocate(DeviceSpec(2 * kMiB));
  const std::uint64_t session = client.session_id();
  client.HangUp();
  EXPECT_TRUE(Eventually([&] { return client.Node().session_count() == 0; }));
  const auto seen = client.GetLease(lease.lease_id());
  // This process lives and has the memory: it is nobody's, and not free.
  if (geteuid() == 0) {
    ASSERT_TRUE(Worked(seen));
    EXPECT_EQ(seen.message.lease().state(), v1::LEASE_STATE_QUARANTINED);
  }
  EXPECT_TRUE(AddsUp(client.Node()));
  ASSERT_TRUE(client.Dial().ok());
  const auto late = client.Hello(session);
  ASSERT_TRUE(late.ok());
  EXPECT_NE(late->session_id, session);
  chunks.clear();
  EXPECT_TRUE(Eventually([&] { return IsAllFree(client.Node()); }));
}

}  // namespace
}  // namespace gpulease::e2e
