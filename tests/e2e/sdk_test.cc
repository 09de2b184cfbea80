// SPDX-License-Identifier: Apache-2.0
//
// The SDK in this process, the real daemon, and bare clients in others.
#include <gmock/gmock.h>
#include <gpulease/gpulease.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/unix_listener.h"
#include "driver/cuda_driver.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/keeper_process.h"

namespace gpulease::e2e {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// One daemon for all: a process sees one simulated node in its life.
class SdkTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    daemon_ = new DaemonProcess({.simulate = "1x1GiB", .config = "largest_chunk: \"2MiB\""});
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(daemon_->Stop(), 0);
    delete daemon_;
  }
  SdkTest() : observer_(daemon_->runtime_dir()) {}
  ~SdkTest() override {
    EXPECT_TRUE(Eventually([&] { return IsAllFree(observer_.Node()); }))
        << observer_.Node().ShortDebugString();
  }
  static ::gpulease::ClientOptions Here() { return {.runtime_dir = daemon_->runtime_dir()}; }
  // What the call throws, or nothing.
  template <typename Call>
  static std::optional<Exception> Thrown(Call call) {
    try {
      call();
    } catch (const Exception& exception) {
      return exception;
    }
    return std::nullopt;
  }
  // The driver by which this process reads what the SDK mapped.
  static const driver::CudaDriver& Cuda() {
    static const std::shared_ptr<const driver::CudaDriver> cuda = [] {
      auto loaded = driver::CudaDriver::Load({daemon_->runtime_dir() + "/simulated"});
      GPULEASE_CHECK(loaded.ok(), loaded.error().message);
      cuda::CUcontext context = nullptr;
      GPULEASE_CHECK((*loaded)->cuDevicePrimaryCtxRetain(&context, 0) == cuda::CUDA_SUCCESS,
                     "a context");
      return *loaded;
    }();
    cuda::CUcontext context = nullptr;
    cuda->cuDevicePrimaryCtxRetain(&context, 0);
    cuda->cuCtxSetCurrent(context);
    return *cuda;
  }

  static DaemonProcess* daemon_;
  RawClient observer_;
};

DaemonProcess* SdkTest::daemon_ = nullptr;

TEST_F(SdkTest, DeviceMemoryOfManyChunksIsSharedWithAnotherProcess) {
  Client client(Here());
  // 300 chunks, which come in two pushes.
  Lease lease = client.Allocate({.size_bytes = 600 * kMiB, .name = "weights"});
  EXPECT_EQ(lease.chunk_sizes().size(), 300u);
  EXPECT_TRUE(lease.owned());
  Mapping mapped = lease.Map();
  EXPECT_EQ(mapped.size_bytes(), 600 * kMiB);
  ASSERT_EQ(Cuda().cuMemsetD8(mapped.device_pointer() + 599 * kMiB, 0x5a, kMiB),
            cuda::CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuCtxSynchronize(), cuda::CUDA_SUCCESS);
  ClientProcess reader(daemon_->runtime_dir());
  reader.Connect();
  const std::string id = std::to_string(lease.id());
  ASSERT_EQ(std::to_string(ClientProcess::LeaseOf(reader.Ask("open weights ro"))), id);
  ASSERT_EQ(reader.Ask("map " + id + " ro"), "ok");
  EXPECT_EQ(reader.Ask("check " + id + " 0"), std::to_string(599 * kMiB))
      << "zeros up to what was written";
}

TEST_F(SdkTest, WhatAnotherProcessWroteIsReadHereAfterItsDeath) {
  ClientProcess writer(daemon_->runtime_dir());
  writer.Connect();
  const std::string id =
      std::to_string(ClientProcess::LeaseOf(writer.Ask("device 4194304 name=results")));
  ASSERT_EQ(writer.Ask("map " + id), "ok");
  ASSERT_EQ(writer.Ask("fill " + id + " 77"), "ok");
  Client client(Here());
  Lease lease = client.Open("results", Access::kReadOnly);
  EXPECT_FALSE(lease.owned());
  writer.Kill();
  const Mapping mapped = lease.Map();
  EXPECT_EQ(mapped.access(), Access::kReadOnly);
  std::vector<unsigned char> bytes(mapped.size_bytes());
  ASSERT_EQ(Cuda().cuMemcpyDtoH(bytes.data(), mapped.device_pointer(), bytes.size()),
            cuda::CUDA_SUCCESS);
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 77), static_cast<long>(bytes.size()));
}

TEST_F(SdkTest, HostMemoryIsSharedByAProcessWithoutCuda) {
  Client client({.runtime_dir = daemon_->runtime_dir(), .use_cuda = false});
  Lease lease =
      client.Allocate({.size_bytes = 5 * kMiB, .kind = MemoryKind::kHost, .name = "table"});
  EXPECT_GE(lease.numa_node(), 0);
  Mapping mapped = lease.Map();
  ASSERT_EQ(mapped.bytes().size(), 5 * kMiB);
  std::fill(mapped.bytes().begin(), mapped.bytes().end(), std::byte{33});
  ClientProcess reader(daemon_->runtime_dir());
  reader.Connect();
  const std::string id = std::to_string(ClientProcess::LeaseOf(reader.Ask("open table ro")));
  ASSERT_EQ(reader.Ask("map " + id + " ro"), "ok");
  EXPECT_EQ(reader.Ask("check " + id + " 33"), "yes");
}

TEST_F(SdkTest, MuchHostMemoryIsWaitedForWithoutAskingToWait) {
  Client client(Here());
  Lease lease = client.Allocate({.size_bytes = 64 * kMiB, .kind = MemoryKind::kHost});
  EXPECT_EQ(lease.size_bytes(), 64 * kMiB);
}

TEST_F(SdkTest, ErrorsAreThrownWithTheirNumbers) {
  Client client(Here());
  const auto bad = Thrown([&] { client.Allocate({.size_bytes = 0}); });
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->code(), ErrorCode::kInvalidArgument);
  Lease held = client.Allocate({.size_bytes = 768 * kMiB, .name = "held"});
  const auto short_of = Thrown([&] { client.Allocate({.size_bytes = 512 * kMiB}); });
  ASSERT_TRUE(short_of);
  EXPECT_EQ(short_of->code(), ErrorCode::kUnavailable);
  EXPECT_EQ(short_of->reason(), ErrorReason::kMemoryShort);
  EXPECT_EQ(short_of->requested_bytes(), 512 * kMiB);
  EXPECT_EQ(short_of->available_bytes(), 256 * kMiB);
  ASSERT_EQ(short_of->blockers().size(), 1u);
  EXPECT_EQ(short_of->blockers()[0].lease_id, held.id());
  EXPECT_EQ(Thrown([&] { client.Allocate({.size_bytes = 1, .name = "held"}); })->reason(),
            ErrorReason::kNameTaken);
  EXPECT_EQ(Thrown([&] { client.Open("nothing"); })->code(), ErrorCode::kNotFound);
}

TEST_F(SdkTest, ARequestWaitsInTheQueueAndIsGranted) {
  ClientProcess holder(daemon_->runtime_dir());
  holder.Connect();
  ASSERT_NE(ClientProcess::LeaseOf(holder.Ask("device 1073741824")), 0u);
  Client client(Here());
  PendingLease pending = client.Request({.size_bytes = 64 * kMiB, .wait = std::chrono::minutes(5)});
  EXPECT_FALSE(pending.ready());
  EXPECT_EQ(pending.queue_position(), 1u);
  EXPECT_FALSE(pending.Wait(milliseconds(20))) << "the place is kept";
  holder.Kill();
  const std::optional<Lease> lease = pending.Wait(std::chrono::minutes(1));
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->size_bytes(), 64 * kMiB);
}

TEST_F(SdkTest, EventsOfALeaseThatIsOpenHereCome) {
  ClientProcess owner(daemon_->runtime_dir());
  owner.Connect();
  const std::uint64_t id = ClientProcess::LeaseOf(owner.Ask("device 2097152 name=watched"));
  Client client(Here());
  Lease lease = client.Open("watched");
  const auto next = [&](EventType type) -> std::optional<Event> {
    for (;;) {
      std::optional<Event> event = client.NextEvent(kPatience);
      if (!event || event->type == type) return event;
    }
  };
  ASSERT_TRUE(next(EventType::kReady));
  owner.Kill();
  const auto gone = next(EventType::kOwnerGone);
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->lease_id, id);
}

TEST_F(SdkTest, AForkedChildChangesNothingForItsParent) {
  Client client(Here());
  Lease lease = client.Allocate({.size_bytes = 2 * kMiB, .name = "parents"});
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      client.Node();
    } catch (const Exception& exception) {
      code = exception.reason() == ErrorReason::kSessionEnded ? 0 : 2;
    }
    lease = Lease();
    { const Client moved = std::move(client); }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(observer_.GetLease("parents").message.lease().state(), v1::LEASE_STATE_LEASED);
  EXPECT_NO_THROW(client.Node());
}

TEST_F(SdkTest, ManyThreadsShareAClient) {
  Client client(Here());
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        try {
          Lease lease = client.Allocate({.size_bytes = 4 * kMiB});
          if (lease.chunk_sizes().size() != 2) ++failed;
        } catch (const Exception&) {
          ++failed;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

TEST(SdkRestartTest, AClientGoesOnWithTheNextDaemonAndItsOldLeasesAreOver) {
  DaemonProcess daemon({.simulate = "1x1GiB"});
  Client client({.runtime_dir = daemon.runtime_dir(), .use_cuda = false});
  Lease lease = client.Allocate({.size_bytes = 4096, .kind = MemoryKind::kHost});
  Mapping mapped = lease.Map();
  mapped.bytes()[0] = std::byte{9};
  const std::string before = client.instance();
  daemon.Kill();
  daemon.Start();
  EXPECT_NE(client.Node().instance, before);
  EXPECT_NE(client.instance(), before);
  EXPECT_EQ(mapped.bytes()[0], std::byte{9}) << "what is mapped stays";
  mapped = Mapping();
  try {
    lease.Release();
    ADD_FAILURE() << "the lease is gone";
  } catch (const Exception& exception) {
    EXPECT_EQ(exception.reason(), ErrorReason::kSessionEnded) << exception.what();
  }
  EXPECT_NO_THROW(client.Allocate({.size_bytes = 2 * kMiB}));
}

// Seen from a program: its memory is there all the time, each call is answered, who waits goes on
// waiting.
TEST(SdkRestartTest, WithAKeeperAClientDoesNotNotice) {
  TemporaryDirectory folder;
  KeeperProcess keeper(folder.path() + "/run");
  DaemonProcess daemon({.simulate = "1x1GiB",
                        .config = "host_memory_percent: 1",
                        .runtime_dir = folder.path() + "/run"});
  Client client({.runtime_dir = daemon.runtime_dir(), .use_cuda = false});
  const std::string instance = client.instance();
  Lease kept =
      client.Allocate({.size_bytes = 64 * kMiB, .kind = MemoryKind::kHost, .name = "kept"});
  Mapping mapped = kept.Map();
  std::memset(mapped.host_pointer(), 0x5a, mapped.size_bytes());
  // All but what is kept, so that another has to wait.
  const Bytes total = client.Node().host.front().free_bytes;
  std::optional<Lease> most(client.Allocate({.size_bytes = total, .kind = MemoryKind::kHost}));
  std::atomic<bool> granted = false;
  std::thread waiter([&] {
    Client other({.runtime_dir = daemon.runtime_dir(), .use_cuda = false});
    Lease late = other.Allocate(
        {.size_bytes = 64 * kMiB, .kind = MemoryKind::kHost, .wait = std::chrono::minutes(1)});
    granted = true;
  });
  EXPECT_TRUE(Eventually(
      [&] { return RawClient(daemon.runtime_dir()).Node().host(0).memory().queue_length() > 0; }));
  std::atomic<bool> ending = false;
  std::atomic<int> calls = 0;
  std::thread caller([&] {
    Client other({.runtime_dir = daemon.runtime_dir(), .use_cuda = false});
    while (!ending) {
      Lease opened = other.Open("kept", Access::kReadOnly);
      EXPECT_EQ(opened.Map().size_bytes(), 64 * kMiB);
      ++calls;
    }
  });
  for (int life = 0; life < 2; ++life) {
    EXPECT_TRUE(Eventually([&, before = calls.load()] { return calls > before + 10; }));
    if (life == 0) {
      daemon.Kill();
    } else {
      EXPECT_EQ(daemon.Stop(), 0);
    }
    daemon.Start();
  }
  EXPECT_TRUE(Eventually([&, before = calls.load()] { return calls > before + 10; }));
  ending = true;
  caller.join();
  EXPECT_FALSE(granted);
  most.reset();
  waiter.join();
  EXPECT_TRUE(granted);
  const auto* const bytes = static_cast<const unsigned char*>(mapped.host_pointer());
  EXPECT_EQ(std::count(bytes, bytes + mapped.size_bytes(), 0x5a),
            static_cast<std::ptrdiff_t>(mapped.size_bytes()));
  EXPECT_EQ(client.instance(), instance);
  EXPECT_EQ(client.Leases().size(), 1u);
}

// Seen with systemd 252: while it closes the sockets of a daemon that was killed it takes every
// connection and ends it at once, and calls failed.
TEST(SdkRestartTest, CallsOutliveAServiceManagerThatEndsConnectionsForAMoment) {
  TemporaryDirectory folder;
  const std::string runtime_dir = folder.path() + "/run";
  KeeperProcess keeper(runtime_dir);
  const auto grpc = ListenUnix(runtime_dir + "/gpulease.sock", SOCK_STREAM, 0666);
  const auto handles = ListenUnix(runtime_dir + "/handles.sock", SOCK_SEQPACKET, 0666);
  ASSERT_TRUE(grpc.ok() && handles.ok());
  DaemonProcess daemon({.runtime_dir = runtime_dir, .sockets = {grpc->get(), handles->get()}});
  Client client({.runtime_dir = runtime_dir, .use_cuda = false});
  Lease kept = client.Allocate({.size_bytes = 4096, .kind = MemoryKind::kHost});
  std::atomic<bool> ending = false;
  std::atomic<int> calls = 0;
  std::thread caller([&] {
    while (!ending) {
      try {
        client.Node();
        client.Allocate({.size_bytes = 4096, .kind = MemoryKind::kHost}).Release();
      } catch (const Exception& exception) {
        ADD_FAILURE() << exception.what();
      }
      ++calls;
    }
  });
  for (int life = 0; life < 2; ++life) {
    EXPECT_TRUE(Eventually([&, before = calls.load()] { return calls > before + 10; }));
    daemon.Kill();
    const auto until = std::chrono::steady_clock::now() + milliseconds(100);
    while (std::chrono::steady_clock::now() < until) {
      pollfd polled[] = {{grpc->get(), POLLIN, 0}, {handles->get(), POLLIN, 0}};
      if (poll(polled, 2, 1) <= 0) continue;
      for (const pollfd& listener : polled) {
        if (listener.revents != 0) UniqueFd(accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC));
      }
    }
    daemon.Start();
  }
  EXPECT_TRUE(Eventually([&, before = calls.load()] { return calls > before + 10; }));
  ending = true;
  caller.join();
  EXPECT_NO_THROW(kept.Release());
}

// Load once for all, over the daemon's death, and found again by who comes later.
TEST(SdkRestartTest, WhatIsLoadedAndLastsIsThereAfterItsOwnerAndItsDaemon) {
  TemporaryDirectory folder;
  KeeperProcess keeper(folder.path() + "/run");
  DaemonProcess daemon({.simulate = "1x1GiB",
                        .config = "session_grace_ms: 50",
                        .runtime_dir = folder.path() + "/run"});
  const ::gpulease::ClientOptions here{.runtime_dir = daemon.runtime_dir(), .use_cuda = false};
  const AllocateOptions weights{
      .size_bytes = 2 * kMiB, .kind = MemoryKind::kHost, .name = "weights", .persistent = true};
  std::uint64_t generation = 0;
  {
    Client filler(here);
    std::optional<Client> other(here);
    LoadedLease mine = filler.LoadOrAttach(weights, std::chrono::seconds(20));
    ASSERT_TRUE(mine.fill);
    EXPECT_THROW(other->LoadOrAttach(weights, milliseconds(20)), Exception) << "nobody sealed it";
    std::thread waiter([&] {
      const LoadedLease theirs = other->LoadOrAttach(weights, std::chrono::seconds(60));
      EXPECT_FALSE(theirs.fill);
      EXPECT_EQ(theirs.lease.Map().bytes()[4095], std::byte{7});
    });
    daemon.Kill();
    daemon.Start();
    {
      const Mapping mapped = mine.lease.Map();
      std::memset(mapped.host_pointer(), 7, mapped.size_bytes());
    }
    mine.lease.Seal("v7", std::vector<DirectoryEntry>{{.name = "layer.0",
                                                       .offset_bytes = 4096,
                                                       .size_bytes = 8,
                                                       .shape = {2, 1},
                                                       .dtype = "float32"}});
    EXPECT_EQ(mine.lease.access(), Access::kReadOnly);
    waiter.join();
    generation = mine.lease.generation();
    mine.lease.Close();
  }
  daemon.Kill();
  daemon.Start();
  Client later(here);
  LoadedLease found = later.LoadOrAttach(weights, std::chrono::seconds(20));
  EXPECT_FALSE(found.fill);
  EXPECT_EQ(found.lease.content_tag(), "v7");
  EXPECT_EQ(found.lease.generation(), generation);
  EXPECT_EQ(found.lease.Map().bytes()[4095], std::byte{7});
  const std::vector<DirectoryEntry> directory = found.lease.Directory();
  ASSERT_EQ(directory.size(), 1u);
  EXPECT_EQ(directory[0].name, "layer.0");
  EXPECT_EQ(directory[0].shape, (std::vector<std::uint64_t>{2, 1}));
  ASSERT_TRUE(Eventually([&] { return later.Leases().at(0).orphan; }));
  found.lease.Close();
  Lease claimed = later.Claim("weights");
  EXPECT_TRUE(claimed.owned());
  EXPECT_EQ(claimed.access(), Access::kReadOnly);
  EXPECT_THROW(later.Claim("weights").Map({.access = Access::kReadWrite}), Exception);
  claimed.Release();
  EXPECT_TRUE(Eventually([&] { return later.Leases().empty(); }));
  const LoadedLease again = later.LoadOrAttach(weights, std::chrono::seconds(20));
  EXPECT_TRUE(again.fill);
  EXPECT_GT(again.lease.generation(), generation);
}

TEST(SdkRestartTest, WithoutADaemonAClientSaysSo) {
  TemporaryDirectory folder;
  try {
    Client client({.runtime_dir = folder.path(), .connect_timeout = milliseconds(50)});
    ADD_FAILURE() << "there is none";
  } catch (const Exception& exception) {
    EXPECT_EQ(exception.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(exception.what(), HasSubstr(folder.path()));
  }
}

}  // namespace
}  // namespace gpulease::e2e
