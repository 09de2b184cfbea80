// SPDX-License-Identifier: Apache-2.0
//
// The daemon's own life: start, what is in its way, stop, start again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <list>

#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/watch_stream.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;

constexpr int kBadConfiguration = 78;

ino_t InodeOf(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

Ended RunDaemon(const std::string& runtime_dir) {
  return RunProgram(
      {BuiltProgram("gpuleased"), "--simulate", "1x1GiB", "--runtime-dir", runtime_dir});
}

UniqueFd ListenAt(const std::string& path, int type) {
  UniqueFd listener(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(listen(listener.get(), 5), 0);
  return listener;
}

TEST(LifecycleTest, ASecondInstanceIsRefusedAndTheFirstDoesNotNotice) {
  DaemonProcess daemon;
  RawClient client(daemon.runtime_dir());
  client.Connect();
  const auto held = client.MustAllocate(DeviceSpec(1, "kept"));
  const ino_t grpc = InodeOf(daemon.grpc_socket()), handles = InodeOf(daemon.handle_socket());
  const Ended second = RunDaemon(daemon.runtime_dir());
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.output, HasSubstr("already running"));
  EXPECT_THAT(second.output, HasSubstr(std::to_string(daemon.pid())));
  EXPECT_EQ(InodeOf(daemon.grpc_socket()), grpc);
  EXPECT_EQ(InodeOf(daemon.handle_socket()), handles);
  EXPECT_EQ(client.GetLease("kept").message.lease().state(), v1::LEASE_STATE_LEASED);
  RawClient another(daemon.runtime_dir());
  another.Connect();
}

TEST(LifecycleTest, SocketsOfADeadDaemonAreReplaced) {
  DaemonProcess daemon;
  daemon.Kill();
  ASSERT_NE(InodeOf(daemon.grpc_socket()), 0u) << "a killed daemon leaves them";
  daemon.Start();
  RawClient client(daemon.runtime_dir());
  client.Connect();
  EXPECT_TRUE(Worked(client.Allocate({DeviceSpec(kGiB)})));
}

TEST(LifecycleTest, TheNextDaemonIsAnotherInstanceAndKnowsWhatLivingProcessesHold) {
  DaemonProcess daemon({.simulate = "1x1GiB"});
  ClientProcess client(daemon.runtime_dir());
  client.Connect();
  const std::string id = std::to_string(ClientProcess::LeaseOf(client.Ask("device 805306368")));
  ASSERT_EQ(client.Ask("map " + id), "ok");
  RawClient observer(daemon.runtime_dir());
  const std::string first = observer.GetNode().instance;
  daemon.Kill();
  daemon.Start();
  RawClient later(daemon.runtime_dir());
  later.Connect();
  EXPECT_NE(later.GetNode().instance, first);
  // What the dead daemon's client maps is used, as the driver shows it: nobody is granted it.
  EXPECT_TRUE(
      Eventually([&] { return later.Node().gpus(0).memory().outside_bytes() == 768 * kMiB; }));
  EXPECT_TRUE(AddsUp(later.Node()));
  EXPECT_FALSE(later.Allocate({DeviceSpec(512 * kMiB)}).ok());
  client.Kill();
  EXPECT_TRUE(Eventually([&] { return later.Allocate({DeviceSpec(512 * kMiB)}).ok(); }));
}

TEST(LifecycleTest, ThingsThatAreNoSocketsOfOursAreLeftAlone) {
  for (const char* name : {"gpulease.sock", "handles.sock"}) {
    TemporaryDirectory folder;
    const std::string path = folder.path() + "/" + name;
    std::ofstream(path) << "precious";
    Ended ended = RunDaemon(folder.path());
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(ended.output, HasSubstr(path));
    std::string text;
    std::ifstream(path) >> text;
    EXPECT_EQ(text, "precious");

    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    ended = RunDaemon(folder.path());
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(ended.output, HasSubstr(path));
    EXPECT_TRUE(std::filesystem::is_directory(path));

    for (const int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
      std::filesystem::remove(path);
      UniqueFd living;
      if (type == SOCK_DGRAM) {
        living.Reset(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
        ASSERT_EQ(bind(living.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      } else {
        living = ListenAt(path, type);
      }
      const ino_t before = InodeOf(path);
      ended = RunDaemon(folder.path());
      EXPECT_EQ(ended.exit_code, 1);
      EXPECT_THAT(ended.output, HasSubstr(path));
      EXPECT_EQ(InodeOf(path), before);
    }
  }
}

TEST(LifecycleTest, ADirectoryThatOthersCouldWriteToIsRefused) {
  TemporaryDirectory folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  const Ended ended = RunDaemon(folder.path());
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.output, HasSubstr("writable by others"));
}

TEST(LifecycleTest, ADirectoryWhosePathIsTooLongForASocketIsRefusedWithTheNumbers) {
  TemporaryDirectory folder;
  const Ended ended = RunDaemon(folder.path() + "/" + std::string(120, 'd'));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.output, HasSubstr("too long"));
  EXPECT_THAT(ended.output, HasSubstr("107"));
}

TEST(LifecycleTest, AConfigurationIsCheckedWithoutStarting) {
  TemporaryDirectory folder;
  const std::string file = folder.path() + "/config";
  const auto check = [&](const std::string& text) {
    std::ofstream(file) << text;
    return RunProgram({BuiltProgram("gpuleased"), "--config", file, "--check-config",
                       "--runtime-dir", folder.path() + "/run"});
  };
  const Ended good = check("largest_chunk: \"64MiB\"\ntenants { name: \"a\" uid: 1 }\n");
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_THAT(good.output, HasSubstr("ok"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/run"));
  const Ended bad = check("log_level: \"info\"\nlargest_chunk: \"3MiB\"\n");
  EXPECT_EQ(bad.exit_code, kBadConfiguration);
  EXPECT_THAT(bad.output, HasSubstr(file + ":2: largest_chunk"));
  EXPECT_EQ(check("no_such_option: 1").exit_code, kBadConfiguration);
  EXPECT_EQ(check("tenants {").exit_code, kBadConfiguration);
  const Ended missing =
      RunProgram({BuiltProgram("gpuleased"), "--config", "/nonexistent", "--check-config"});
  EXPECT_EQ(missing.exit_code, kBadConfiguration);
  EXPECT_THAT(missing.output, HasSubstr("/nonexistent"));
}

TEST(LifecycleTest, TheShippedConfigurationIsGood) {
  const char* const source = std::getenv("GPULEASE_SOURCE_DIR");
  if (source == nullptr) GTEST_SKIP() << "GPULEASE_SOURCE_DIR is not set";
  EXPECT_EQ(RunProgram({BuiltProgram("gpuleased"), "--config",
                        std::string(source) + "/config/gpuleased.textproto", "--check-config"})
                .exit_code,
            0);
}

TEST(LifecycleTest, GroupsThatAreNotThereAreRefusedAtStart) {
  TemporaryDirectory folder;
  for (const char* option : {"socket_group", "admin_group"}) {
    const std::string file = folder.path() + "/config";
    std::ofstream(file) << option << ": \"no-such-group\"";
    const Ended ended = RunProgram({BuiltProgram("gpuleased"), "--config", file, "--simulate",
                                    "1GiB", "--runtime-dir", folder.path() + "/run"});
    EXPECT_GT(ended.exit_code, 0);
    EXPECT_THAT(ended.output, HasSubstr("no-such-group"));
  }
}

TEST(LifecycleTest, AStopWithNobodyThereIsQuickAndLeavesNoSockets) {
  DaemonProcess daemon;
  EXPECT_EQ(daemon.Stop(), 0);
  EXPECT_EQ(InodeOf(daemon.grpc_socket()), 0u);
  EXPECT_EQ(InodeOf(daemon.handle_socket()), 0u);
}

TEST(LifecycleTest, AStopWithManyConnectedEndsWithinTwoSecondsAndTellsThem) {
  DaemonProcess daemon({.simulate = "1x1GiB"});
  std::list<RawClient> clients;
  for (int i = 0; i < 200; ++i) {
    RawClient& client = clients.emplace_back(daemon.runtime_dir());
    client.Connect();
    ASSERT_TRUE(Worked(client.GetNode()));
  }
  RawClient& first = clients.front();
  const auto held = first.MustAllocate(DeviceSpec(kGiB));
  std::list<WatchStream> watches;
  int number = 0;
  for (RawClient& client : clients) {
    if (number++ == 50) break;
    watches.emplace_back(client, client.session_id());
    ASSERT_TRUE(watches.back().Next(v1::Event::TYPE_READY));
  }
  std::list<std::pair<Reply<v1::AllocateResponse>, std::thread>> waiters;
  for (int i = 0; i < 10; ++i) {
    const auto queued = first.Allocate({DeviceSpec(2 * kMiB)}, 600'000);
    ASSERT_TRUE(Worked(queued));
    auto& [reply, thread] = waiters.emplace_back();
    v1::AwaitRequest request;
    request.set_session_id(first.session_id());
    request.set_lease_id(queued.message.leases(0).lease_id());
    thread = std::thread([&first, request, &reply = reply] {
      reply = first.Call(&v1::LeaseService::StubInterface::Await, request);
    });
  }
  // Their calls go out on this connection before these do.
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Worked(first.GetNode()));
  EXPECT_EQ(daemon.Stop(std::chrono::seconds(2)), 0);
  int told = 0;
  for (auto& [reply, thread] : waiters) {
    thread.join();
    if (Refused(reply, grpc::StatusCode::UNAVAILABLE, v1::REASON_STOPPING)) {
      ++told;
    } else {
      // A call that comes while gRPC ends already gets gRPC's own answer.
      EXPECT_TRUE(reply.status.error_code() == grpc::StatusCode::CANCELLED ||
                  reply.status.error_code() == grpc::StatusCode::UNAVAILABLE)
          << Describe(reply.status, reply.detail);
    }
  }
  EXPECT_GT(told, 0);
  for (WatchStream& watch : watches) {
    EXPECT_TRUE(watch.Next(v1::Event::TYPE_STOPPING));
    EXPECT_TRUE(Refused(watch.End(), grpc::StatusCode::UNAVAILABLE, v1::REASON_STOPPING));
  }
}

TEST(LifecycleTest, AStopDoesNotWaitForAClientThatDoesNotRead) {
  DaemonProcess daemon;
  // Sends the start of a conversation on each socket, and never reads.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) {
    for (const auto& [path, type] : {std::pair(daemon.grpc_socket(), SOCK_STREAM),
                                     std::pair(daemon.handle_socket(), SOCK_SEQPACKET)}) {
      UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
      ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      if (type == SOCK_STREAM) {
        const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        ASSERT_GT(send(fd.get(), preface.data(), preface.size(), 0), 0);
      }
      silent.push_back(std::move(fd));
    }
  }
  EXPECT_EQ(daemon.Stop(std::chrono::seconds(2)), 0);
}

TEST(LifecycleTest, AThousandRoundsLeaveDescriptorsAndMemoryWhereTheyWere) {
  DaemonProcess daemon({.simulate = "1x1GiB"});
  RawClient observer(daemon.runtime_dir());
  std::size_t before = 0;
  for (int round = 0; round < 1000; ++round) {
    RawClient client(daemon.runtime_dir());
    client.Connect();
    {
      const auto device = client.MustAllocate(DeviceSpec(64 * kMiB));
      const auto host = client.MustAllocate(HostSpec(8192));
      ASSERT_TRUE(Worked(client.Release(device.first.lease_id())));
      ASSERT_TRUE(Worked(client.Release(host.first.lease_id())));
    }
    client.HangUp();
    if (round == 20) {
      ASSERT_TRUE(Eventually([&] { return IsAllFree(observer.Node()); }));
      before = daemon.settled_descriptors();
    }
  }
  EXPECT_TRUE(Eventually([&] { return IsAllFree(observer.Node()); }));
  EXPECT_TRUE(Eventually([&] { return daemon.node().Used(0) == 0; }));
  EXPECT_TRUE(Eventually([&] { return daemon.open_descriptors() <= before; }))
      << daemon.open_descriptors() << " descriptors, " << before << " after 20 rounds";
}

TEST(LifecycleTest, DescriptorsThatAreUsedUpByConnectionsComeBack) {
  DaemonProcess daemon({.open_files = 300});
  RawClient early(daemon.runtime_dir());
  early.Connect();
  ASSERT_TRUE(Worked(early.GetNode()));
  std::list<RawClient> clients;
  bool refused = false;
  for (int i = 0; i < 200 && !refused; ++i) {
    RawClient& client = clients.emplace_back(daemon.runtime_dir());
    refused = !client.Dial().ok() || !client.Hello().ok();
  }
  EXPECT_TRUE(refused) << "300 descriptors are not enough for 200 connections";
  EXPECT_TRUE(Worked(early.GetNode())) << "who is there is served";
  EXPECT_TRUE(Worked(early.Allocate({DeviceSpec(1)})));
  clients.clear();
  EXPECT_TRUE(Eventually([&] {
    RawClient client(daemon.runtime_dir());
    return client.Dial().ok() && client.Hello().ok() && client.GetNode().ok();
  }));
}

TEST(LifecycleTest, OutsideUseIsShownAndLowersWhatIsGranted) {
  DaemonProcess daemon({.simulate = "1x1GiB"});
  RawClient client(daemon.runtime_dir());
  client.Connect();
  daemon.node().SetOutsideBytes(0, 768 * kMiB);
  EXPECT_TRUE(
      Eventually([&] { return client.Node().gpus(0).memory().outside_bytes() == 768 * kMiB; }));
  EXPECT_EQ(client.Node().gpus(0).memory().free_bytes(), 256 * kMiB);
  EXPECT_TRUE(AddsUp(client.Node()));
  EXPECT_TRUE(Refused(client.Allocate({DeviceSpec(512 * kMiB)}), grpc::StatusCode::UNAVAILABLE,
                      v1::REASON_MEMORY_SHORT));
  EXPECT_TRUE(Worked(client.Allocate({DeviceSpec(256 * kMiB)})));
  // More than there is: free is none, and the excess is a number of its own.
  daemon.node().SetOutsideBytes(0, 900 * kMiB);
  EXPECT_TRUE(Eventually([&] {
    const v1::MemoryUse use = client.Node().gpus(0).memory();
    return use.overcommitted_bytes() == (900 + 256 - 1024) * kMiB && use.free_bytes() == 0;
  }));
  EXPECT_TRUE(AddsUp(client.Node()));
  daemon.node().SetOutsideBytes(0, 0);
  EXPECT_TRUE(Eventually([&] { return client.Node().gpus(0).memory().outside_bytes() == 0; }));
}

TEST(LifecycleTest, HeadroomIsNeverLeased) {
  DaemonProcess daemon({.simulate = "1x1GiB", .config = "device_headroom: \"256MiB\""});
  RawClient client(daemon.runtime_dir());
  client.Connect();
  EXPECT_TRUE(Refused(client.Allocate({DeviceSpec(kGiB)}), grpc::StatusCode::INVALID_ARGUMENT,
                      v1::REASON_TOO_LARGE));
  EXPECT_TRUE(Worked(client.Allocate({DeviceSpec(768 * kMiB)})));
  EXPECT_TRUE(Refused(client.Allocate({DeviceSpec(1)}), grpc::StatusCode::UNAVAILABLE,
                      v1::REASON_MEMORY_SHORT));
}

}  // namespace
}  // namespace gpulease::e2e
