// SPDX-License-Identifier: Apache-2.0
//
// Many clients and many leases. The figures are printed; what is asserted is what would hurt.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <list>

#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/sanitized.h"

namespace gpulease::e2e {
namespace {

constexpr int kClients = 1000;
constexpr int kLeases = 5000;
constexpr int kBatch = 50;
constexpr Bytes kMostPerLease = 2 * kKiB;
constexpr std::chrono::milliseconds kSlowestStatus{1000};

// Open files of this process, of which each client takes about three.
bool RaiseOpenFiles(rlim_t least) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= least;
}

// What the daemon computes in three seconds, once it is done with what it was asked for.
std::int64_t TicksInThreeSeconds(const DaemonProcess& daemon) {
  std::int64_t ticks = 0;
  std::chrono::steady_clock::time_point since;
  const auto restart = [&] {
    ticks = daemon.cpu_ticks();
    since = std::chrono::steady_clock::now();
  };
  restart();
  EXPECT_TRUE(Eventually([&] {
    if (daemon.cpu_ticks() == ticks) {
      return std::chrono::steady_clock::now() - since > std::chrono::milliseconds(200);
    }
    restart();
    return false;
  }));
  restart();
  EXPECT_TRUE(Eventually(
      [&] { return std::chrono::steady_clock::now() - since > std::chrono::seconds(3); }));
  return daemon.cpu_ticks() - ticks;
}

TEST(ScaleTest, AThousandClientsAndFiveThousandLeasesStayCheap) {
  // 5,000 chunks here and in the daemon, 1,000 clients at three descriptors each.
  if (!RaiseOpenFiles(16'000)) GTEST_SKIP() << "needs 16,000 open files";
  DaemonProcess daemon({.simulate = "2x64GiB"});
  RawClient observer(daemon.runtime_dir());
  std::list<RawClient> clients;
  for (int i = 0; i < kClients; ++i) {
    RawClient& client = clients.emplace_back(daemon.runtime_dir());
    client.Connect();
    ASSERT_TRUE(Worked(client.GetNode()));
  }
  const v1::GetNodeResponse connected = observer.Node();
  EXPECT_EQ(connected.session_count(), static_cast<unsigned>(kClients));
  // All of them are there and nobody asks for anything: the daemon does next to nothing. (Not with
  // the leases: to say what is used, the simulated driver looks at every chunk.)
  const std::int64_t idle = TicksInThreeSeconds(daemon);
  std::printf("idle for 3 s: %lld ticks of 10 ms\n", static_cast<long long>(idle));
  EXPECT_LE(idle, kSanitized ? 20 : 1);
  const Bytes before = daemon.resident_bytes();

  auto client = clients.begin();
  for (int i = 0; i < kLeases / kBatch; ++i, ++client) {
    const std::vector<v1::AllocationSpec> specs(kBatch, DeviceSpec(2 * kMiB));
    const auto reply = client->Allocate(specs);
    ASSERT_TRUE(Worked(reply));
    for (const v1::Lease& lease : reply.message.leases()) {
      // Taken and closed: the daemon's own descriptor is the lease.
      ASSERT_TRUE(client->Chunks(client->last_tag(), lease.lease_id()).ok());
    }
  }
  const Bytes after = daemon.resident_bytes();
  std::chrono::nanoseconds slowest{}, sum{};
  constexpr int kAsked = 20;
  for (int i = 0; i < kAsked; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const v1::GetNodeResponse node = observer.Node();
    const auto took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(node.lease_count(), static_cast<unsigned>(kLeases));
    EXPECT_TRUE(AddsUp(node));
    slowest = std::max<std::chrono::nanoseconds>(slowest, took);
    sum += took;
  }
  const double milliseconds = 1e6;
  const Bytes per_lease = after > before ? (after - before) / kLeases : 0;
  std::printf(
      "%d clients: %.1f MiB resident; %d leases: %llu bytes each; status: %.2f ms mean, "
      "%.2f ms at most\n",
      kClients, static_cast<double>(before) / kMiB, kLeases,
      static_cast<unsigned long long>(per_lease),
      static_cast<double>(sum.count()) / kAsked / milliseconds,
      static_cast<double>(slowest.count()) / milliseconds);
  EXPECT_LT(slowest, kSlowestStatus);
  if (!kSanitized) EXPECT_LT(per_lease, kMostPerLease);

  clients.clear();
  EXPECT_EQ(daemon.Stop(std::chrono::seconds(kSanitized ? 10 : 2)), 0);
}

}  // namespace
}  // namespace gpulease::e2e
