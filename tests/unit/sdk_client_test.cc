// SPDX-License-Identifier: Apache-2.0
//
// Client and Lease against the fake daemon: hand-over, reconnect, fork, events, host memory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/handle_protocol.h"
#include "base/unique_fd.h"
#include "client/sdk/include/gpulease/gpulease.h"
#include "tests/fakes/fake_daemon.h"
#include "tests/unit/scratch_dir.h"

namespace gpulease {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr std::uint64_t kPage = 4096;

std::size_t OpenDescriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// What the call throws; an Exception of no code when it does not.
template <typename Call>
Exception Thrown(Call call) {
  try {
    call();
  } catch (const Exception& exception) {
    return exception;
  }
  return Exception(static_cast<ErrorCode>(0), ErrorReason::kUnspecified, "nothing was thrown");
}

class SdkClientTest : public testing::Test {
 protected:
  ClientOptions Options() { return {.runtime_dir = scratch_.path(), .program = "sdk test"}; }
  AllocateOptions Host(std::uint64_t pages, std::string name = "") {
    return {.size_bytes = pages * kPage, .kind = MemoryKind::kHost, .name = std::move(name)};
  }

  ScratchDir scratch_;
  fakes::FakeDaemon daemon_{scratch_.path()};
};

TEST_F(SdkClientTest, IntroducesItselfWithProgramVersionAndPidfd) {
  Client client(Options());
  const auto seen = daemon_.seen();
  ASSERT_EQ(seen.hellos.size(), 1u);
  EXPECT_STREQ(seen.hellos[0].program, "sdk test");
  EXPECT_STRNE(seen.hellos[0].client_version, "");
  int rights = 0;
  socklen_t length = sizeof rights;
  const UniqueFd any(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const bool told = getsockopt(any.get(), SOL_SOCKET, handle::kPassRights, &rights, &length) == 0;
  EXPECT_EQ(seen.hello_descriptors, told ? 0 : 1) << "its pidfd, where the kernel does not tell";
  EXPECT_EQ(client.instance(), daemon_.instance());
  EXPECT_EQ(client.daemon_version(), "0.1.0-fake");
}

TEST_F(SdkClientTest, MapsChunksOneAfterTheOtherAndWritesThem) {
  Client client(Options());
  Lease lease = client.Allocate(Host(5, "block"));
  EXPECT_EQ(lease.size_bytes(), 5 * kPage);
  EXPECT_EQ(lease.chunk_sizes().size(), 5u);
  EXPECT_TRUE(lease.owned());
  Mapping mapped = lease.Map();
  ASSERT_EQ(mapped.bytes().size(), 5 * kPage);
  std::memset(mapped.host_pointer(), 0x5a, mapped.size_bytes());
  std::vector<int> fds = lease.DuplicateDescriptors();
  ASSERT_EQ(fds.size(), 5u);
  for (int fd : fds) {
    char byte = 0;
    EXPECT_EQ(pread(fd, &byte, 1, kPage - 1), 1);
    EXPECT_EQ(byte, 0x5a);
    EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    close(fd);
  }
}

TEST_F(SdkClientTest, TakesALeaseThatComesInSeveralPushesEachAfterTheAnswerToTheLast) {
  daemon_.Change([](auto& behaviour) {
    behaviour.chunks_per_push = 3;
    behaviour.await_taken = true;
  });
  Client client(Options());
  Lease lease = client.Allocate(Host(10));
  EXPECT_EQ(lease.Map().size_bytes(), 10 * kPage);
  EXPECT_TRUE(daemon_.WaitFor([](const auto& seen) { return seen.taken.size() == 4; }));
  for (const auto& taken : daemon_.seen().taken) EXPECT_EQ(taken.ok, 1u);
}

TEST_F(SdkClientTest, AllocatesManyAtOnceAndFromManyThreads) {
  Client client(Options());
  std::vector<AllocateOptions> many;
  for (std::uint64_t i = 1; i <= 8; ++i) many.push_back(Host(i));
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int n = 0; n < 5; ++n) {
        std::vector<Lease> leases = client.AllocateMany(many);
        for (std::uint64_t i = 1; i <= 8; ++i) {
          right += leases[i - 1].Map().size_bytes() == i * kPage ? 1 : 0;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 8 * 5 * 8);
  EXPECT_EQ(daemon_.lease_count(), 0u) << "destroyed leases are released";
}

TEST_F(SdkClientTest, GivesBackWhatItsDescriptorLimitCutsOffAndGoesOn) {
  // The daemon makes its chunks in this process too: before the limit is low.
  daemon_.Change([](auto& behaviour) { behaviour.queue = true; });
  Client client(Options());
  AllocateOptions options = Host(16);
  options.wait = seconds(60);
  PendingLease pending = client.Request(options);
  daemon_.Grant();
  rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  const std::size_t open_before = OpenDescriptors();
  const int next = dup(0);
  close(next);
  // Room for a few more, not for 16 chunks.
  const rlimit low{static_cast<rlim_t>(next) + 5, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &low);
  const Exception error = Thrown([&] { (void)pending.Wait(seconds(20)); });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted) << error.what();
  EXPECT_EQ(error.reason(), ErrorReason::kDescriptorLimit);
  EXPECT_THAT(error.what(), HasSubstr(std::to_string(low.rlim_cur)));
  EXPECT_TRUE(daemon_.WaitFor(
      [](const auto& seen) { return !seen.taken.empty() && seen.taken.back().ok == 0; }));
  // The daemon closes its 16 after it has heard; none was kept here.
  for (int i = 0; i < 2000 && OpenDescriptors() != open_before - 16; ++i) usleep(1000);
  EXPECT_EQ(OpenDescriptors(), open_before - 16);
  daemon_.Change([](auto& behaviour) { behaviour.queue = false; });
  EXPECT_EQ(daemon_.lease_count(), 0u) << "the daemon has taken it back";
  EXPECT_EQ(client.Allocate(Host(16)).Map().size_bytes(), 16 * kPage);
  EXPECT_EQ(daemon_.seen().hellos.size(), 1u) << "on the same connection";
}

TEST_F(SdkClientTest, MapsTwiceAsOneAndUnmapsWithTheLast) {
  Client client(Options());
  Lease lease = client.Allocate(Host(2, "shared"));
  Lease again = client.Open("shared", Access::kReadOnly);
  EXPECT_FALSE(lease.generation() == 0);
  Mapping first = lease.Map();
  Mapping second = lease.Map();
  EXPECT_EQ(first.host_pointer(), second.host_pointer());
  Mapping reading = again.Map();
  EXPECT_NE(reading.host_pointer(), first.host_pointer());
  std::memcpy(first.host_pointer(), "hello", 5);
  EXPECT_EQ(std::memcmp(reading.host_pointer(), "hello", 5), 0);
  const Exception error = Thrown([&] { (void)again.Map({.access = Access::kReadWrite}); });
  EXPECT_EQ(error.code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(Thrown([&] { lease.Release(); }).code(), ErrorCode::kFailedPrecondition)
      << "it is mapped";
}

TEST_F(SdkClientTest, KeepsTheMemoryForAMappingThatOutlivesLeaseAndClient) {
  Mapping mapped;
  {
    Client client(Options());
    mapped = client.Allocate(Host(1)).Map();
  }
  std::memset(mapped.host_pointer(), 1, mapped.size_bytes());
  EXPECT_EQ(daemon_.lease_count(), 1u);
  mapped = Mapping();
  EXPECT_EQ(daemon_.lease_count(), 0u);
}

TEST_F(SdkClientTest, ClosesWithTheLastOfSeveralOpenings) {
  Client owner(Options());
  Lease lease = owner.Allocate(Host(1, "weights"));
  Client other(Options());
  Lease first = other.Open("weights", Access::kReadOnly);
  Lease second = other.Open(lease.id(), Access::kReadWrite);
  EXPECT_FALSE(first.owned());
  EXPECT_EQ(Thrown([&] { first.Release(); }).code(), ErrorCode::kFailedPrecondition);
  first.Close();
  EXPECT_EQ(daemon_.seen().calls["Close"], 0);
  EXPECT_EQ(second.Map().size_bytes(), kPage);
  second = Lease();
  EXPECT_EQ(daemon_.seen().calls["Close"], 1);
  EXPECT_EQ(daemon_.seen().calls["Release"], 0);
  lease.Release();
  EXPECT_EQ(daemon_.seen().calls["Release"], 1);
  EXPECT_FALSE(lease);
  EXPECT_EQ(Thrown([&] { (void)lease.id(); }).code(), ErrorCode::kFailedPrecondition);
}

TEST_F(SdkClientTest, WaitsInTheQueueAndKeepsItsPlaceWhenATimeoutIsOver) {
  daemon_.Change([](auto& behaviour) { behaviour.queue = true; });
  Client client(Options());
  AllocateOptions options = Host(3);
  options.wait = seconds(60);
  PendingLease pending = client.Request(options);
  EXPECT_FALSE(pending.ready());
  EXPECT_EQ(pending.queue_position(), 3u);
  EXPECT_FALSE(pending.Wait(milliseconds(20)).has_value());
  EXPECT_TRUE(daemon_.WaitFor([](const auto& seen) { return seen.cancelled == 1; }));
  EXPECT_EQ(daemon_.lease_count(), 1u) << "the place is kept";
  daemon_.Grant();
  std::optional<Lease> lease = pending.Wait(seconds(20));
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lease->Map().size_bytes(), 3 * kPage);
  EXPECT_FALSE(pending);
}

TEST_F(SdkClientTest, GivesUpItsPlaceWhenCancelledOrDestroyed) {
  daemon_.Change([](auto& behaviour) { behaviour.queue = true; });
  Client client(Options());
  AllocateOptions options = Host(1);
  options.wait = seconds(60);
  PendingLease pending = client.Request(options);
  { PendingLease dropped = client.Request(options); }
  EXPECT_EQ(daemon_.lease_count(), 1u);
  pending.Cancel();
  EXPECT_EQ(daemon_.lease_count(), 0u);
}

TEST_F(SdkClientTest, ThrowsTheDaemonsErrorWithBlockers) {
  Client client(Options());
  daemon_.Change([](auto& behaviour) {
    behaviour.error_code = 14;
    behaviour.error_message = "others hold it";
  });
  const Exception error = Thrown([&] { (void)client.Allocate(Host(1)); });
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(error.reason(), ErrorReason::kMemoryShort);
  EXPECT_STREQ(error.what(), "others hold it");
  ASSERT_EQ(error.blockers().size(), 1u);
  EXPECT_EQ(error.blockers()[0].lease_id, 17u);
  EXPECT_EQ(daemon_.seen().calls["Allocate"], 1) << "an answer is not asked for again";
}

TEST_F(SdkClientTest, ConnectsCallsAnewAfterGoawayAndKeepsItsLeases) {
  Client client(Options());
  Lease lease = client.Allocate(Host(1));
  daemon_.RenewCalls();
  (void)client.Node();
  EXPECT_EQ(lease.Map().size_bytes(), kPage);
  lease.Release();
  EXPECT_EQ(daemon_.lease_count(), 0u);
  EXPECT_EQ(daemon_.seen().hellos.size(), 1u);
}

TEST_F(SdkClientTest, ResumesItsSessionWhenTheDaemonKnowsItStill) {
  Client client(Options());
  Lease lease = client.Allocate(Host(1, "kept"));
  const std::uint64_t session = client.session_id();
  const std::string instance = client.instance();
  daemon_.Stop();
  daemon_.Start(true);
  (void)client.Node();
  EXPECT_EQ(client.session_id(), session);
  EXPECT_NE(client.instance(), instance);
  EXPECT_EQ(daemon_.seen().hellos.back().resume_session_id, session);
  lease.Release();
  EXPECT_EQ(daemon_.lease_count(), 0u);
}

// Seen while the daemon was restarted: "lease 17: there is none", of a lease that was just
// released.
TEST_F(SdkClientTest, AnEndWhoseAnswerWasLostIsNoError) {
  Client client(Options());
  Lease lease = client.Allocate(Host(1, "kept"));
  Lease opened = client.Open("kept");
  daemon_.Change([](fakes::Behaviour& behaviour) { behaviour.endings_cut_off = 1; });
  EXPECT_NO_THROW(lease.Release());
  EXPECT_EQ(daemon_.seen().calls["Release"], 2);
  EXPECT_EQ(daemon_.lease_count(), 0u);
  // What was never there is one all the same.
  Lease other = client.Allocate(Host(1));
  Lease another = client.Allocate(Host(1));
  daemon_.Change([](fakes::Behaviour& behaviour) { behaviour.endings_cut_off = 1; });
  EXPECT_NO_THROW(other.Release());
  EXPECT_NO_THROW(another.Release());
}

TEST_F(SdkClientTest, ReleasesLaterWhatWasDestroyedWhileTheDaemonWasAway) {
  Client client(Options());
  Lease lease = client.Allocate(Host(1));
  daemon_.Stop();
  lease = Lease();
  daemon_.Start(true);
  EXPECT_EQ(daemon_.lease_count(), 1u);
  (void)client.Node();
  EXPECT_EQ(daemon_.lease_count(), 0u);
}

TEST_F(SdkClientTest, SaysThatLeasesOfAFormerDaemonAreGoneAndKeepsWhatIsMapped) {
  Client client(Options());
  Lease lease = client.Allocate(Host(1));
  Mapping mapped = lease.Map();
  daemon_.Stop();
  daemon_.Start(false);
  const Exception error = Thrown([&] { (void)client.Open(lease.id()); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound) << error.what();
  std::memset(mapped.host_pointer(), 7, mapped.size_bytes());
  const Exception gone = Thrown([&] { (void)lease.Map(); });
  EXPECT_EQ(gone.code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(gone.reason(), ErrorReason::kSessionEnded);
  EXPECT_THAT(gone.what(), HasSubstr("lease 1"));
  EXPECT_EQ(client.Allocate(Host(1)).Map().size_bytes(), kPage);
}

TEST_F(SdkClientTest, WaitsForADaemonThatIsBackSoonAndNotForOneThatIsNot) {
  Client client(Options());
  daemon_.Stop();
  std::thread restart([&] {
    // The client finds nobody at first.
    poll(nullptr, 0, 50);
    daemon_.Start(true);
  });
  EXPECT_EQ(client.Node().instance.size(), 32u);
  restart.join();
  ClientOptions hasty = Options();
  hasty.connect_timeout = milliseconds(20);
  hasty.runtime_dir += "/nowhere";
  const Exception error = Thrown([&] { Client none(hasty); });
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(error.what(), HasSubstr("handles.sock"));
  EXPECT_THAT(error.what(), HasSubstr("systemctl status gpuleased"));
}

TEST_F(SdkClientTest, SaysWhyTheDaemonRefusesIt) {
  daemon_.Change([](auto& behaviour) { behaviour.refuse = true; });
  const Exception error = Thrown([&] { Client client(Options()); });
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(error.what(), HasSubstr("0.1 is needed"));
}

TEST_F(SdkClientTest, DeliversEventsToAPollingProgram) {
  Client client(Options());
  const int fd = client.EventDescriptor();
  std::optional<Event> ready = client.NextEvent(seconds(10));
  ASSERT_TRUE(ready.has_value());
  EXPECT_EQ(ready->type, EventType::kReady);
  EXPECT_FALSE(client.NextEvent().has_value());
  v1::Event sent;
  sent.set_type(v1::Event::TYPE_REVOKED);
  sent.set_lease_id(9);
  daemon_.Send(sent);
  // Another thread's calls may read the event off the socket: it is not lost, nor is the wake-up.
  (void)client.Node();
  std::optional<Event> event;
  while (!event) {
    pollfd polled{fd, POLLIN, 0};
    ASSERT_EQ(poll(&polled, 1, 10'000), 1);
    event = client.NextEvent();
  }
  EXPECT_EQ(event->type, EventType::kRevoked);
  EXPECT_EQ(event->lease_id, 9u);
}

TEST_F(SdkClientTest, SaysThatEventsMayBeMissingAfterARestart) {
  Client client(Options());
  ASSERT_EQ(client.NextEvent(seconds(10))->type, EventType::kReady);
  const int fd = client.EventDescriptor();
  daemon_.Stop();
  daemon_.Start(true);
  pollfd polled{fd, POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 10'000), 1) << "the lost connection wakes the program";
  EXPECT_EQ(client.NextEvent(seconds(10))->type, EventType::kLostEvents);
  EXPECT_EQ(client.NextEvent(seconds(10))->type, EventType::kReady);
}

// The exit status of a child that runs `check`; a child that hangs is ended.
template <typename Check>
int InChild(Check check) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

TEST_F(SdkClientTest, IsInertInAForkedChildAndUntouchedInTheParent) {
  Client client(Options());
  Lease lease = client.Allocate(Host(2));
  Mapping mapped = lease.Map();
  const auto before = daemon_.seen();
  EXPECT_EQ(InChild([&] {
              const Exception error = Thrown([&] { (void)client.Node(); });
              if (error.reason() != ErrorReason::kSessionEnded) return false;
              if (std::string(error.what()).find("created before fork") == std::string::npos) {
                return false;
              }
              if (Thrown([&] { (void)lease.Map(); }).reason() != ErrorReason::kSessionEnded) {
                return false;
              }
              { const Mapping dropped_mapping = std::move(mapped); }
              { const Lease dropped_lease = std::move(lease); }
              { const Client dropped_client = std::move(client); }
              return true;
            }),
            0);
  EXPECT_EQ(daemon_.seen().calls, before.calls) << "the child has sent nothing";
  std::memset(mapped.host_pointer(), 1, mapped.size_bytes());
  EXPECT_EQ(lease.Map().size_bytes(), 2 * kPage);
  EXPECT_EQ(daemon_.session_count(), 1u);
}

TEST_F(SdkClientTest, LeavesNoDescriptorOfItsOwnInAForkedChild) {
  const std::size_t without = OpenDescriptors();
  Client client(Options());
  (void)client.NextEvent(seconds(10));
  Lease lease = client.Allocate(Host(20));
  ASSERT_GT(OpenDescriptors(), without + 20);
  // The daemon's side of the connections is in this process too, and stays: two sockets.
  EXPECT_EQ(InChild([&] { return OpenDescriptors() <= without + 22; }), 0);
}

TEST_F(SdkClientTest, ForksWhileOtherThreadsCall) {
  Client client(Options());
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!done) (void)client.Allocate(Host(2)).Map();
    });
  }
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(InChild([&] {
                return Thrown([&] { (void)client.Node(); }).reason() == ErrorReason::kSessionEnded;
              }),
              0);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gpulease
