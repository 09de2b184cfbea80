// SPDX-License-Identifier: Apache-2.0
//
// Memory that is short by the limit of the daemon's cgroup, past which the kernel kills.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "daemon/memory/host_memory.h"
#include "daemon/memory/numa.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;

// A cgroup with a memory limit; gone with the object. Processes in it must have ended.
class LimitedCgroup {
 public:
  explicit LimitedCgroup(Bytes limit) {
    const std::string name = "/gpulease-test-" + std::to_string(getpid());
    const std::string mount = "/sys/fs/cgroup";
    Write(mount + "/cgroup.subtree_control", "+memory");
    for (const auto& [folder, file] :
         {std::pair(mount + name, "/memory.max"),
          std::pair(mount + "/memory" + name, "/memory.limit_in_bytes")}) {
      if (mkdir(folder.c_str(), 0755) != 0) continue;
      folder_ = folder;
      works_ = access((folder + "/cgroup.procs").c_str(), W_OK) == 0 &&
               Write(folder + file, std::to_string(limit));
      if (works_) return;
      rmdir(folder.c_str());
    }
  }
  ~LimitedCgroup() {
    // Whoever was killed a moment ago may still be on its way out.
    static_cast<void>(Eventually([&] { return rmdir(folder_.c_str()) == 0 || errno == ENOENT; }));
  }
  LimitedCgroup(const LimitedCgroup&) = delete;
  LimitedCgroup& operator=(const LimitedCgroup&) = delete;

  bool works() const { return works_; }
  bool Add(pid_t pid) const { return Write(folder_ + "/cgroup.procs", std::to_string(pid)); }

 private:
  static bool Write(const std::string& path, const std::string& text) {
    std::fstream stream(path);  // makes no file
    return bool(stream << text << std::flush);
  }

  std::string folder_;
  bool works_ = false;
};

// The end of a request that may have to wait; what it gets is taken, and let go of here.
Reply<v1::AllocateResponse> Ask(RawClient& client, Bytes size) {
  auto reply = client.Allocate({HostSpec(size)}, /*wait_ms=*/20'000);
  if (reply.ok() && reply.message.leases(0).state() != v1::LEASE_STATE_OFFERED)
    reply = client.Await(reply.message.leases(0).lease_id());
  if (reply.ok())
    EXPECT_TRUE(client.Chunks(client.last_tag(), reply.message.leases(0).lease_id()).ok());
  return reply;
}

constexpr Bytes kLimit = 256 * kMiB;
constexpr char kNoLimits[] = "this machine has no memory cgroups that a test could make";

TEST(MemoryPressureTest, MoreThanTheDaemonsOwnLimitLeavesIsRefusedAndKillsNobody) {
  const LimitedCgroup group(kLimit);
  if (!group.works()) GTEST_SKIP() << kNoLimits;
  DaemonProcess daemon;
  const pid_t pid = daemon.pid();
  ASSERT_TRUE(group.Add(pid));
  RawClient client(daemon.runtime_dir());
  client.Connect();
  auto kept = client.MustAllocate(HostSpec(64 * kMiB));
  const auto refused = Ask(client, 512 * kMiB);
  EXPECT_TRUE(Refused(refused, grpc::StatusCode::RESOURCE_EXHAUSTED, v1::REASON_HOST_MEMORY_SHORT));
  EXPECT_THAT(refused.status.error_message(), HasSubstr("asked 512.0 MiB of pinned memory"));
  EXPECT_LT(refused.detail.available_bytes(), kLimit);
  // What fits is granted, up to the end, where small ones are refused like large ones.
  std::vector<std::uint64_t> leases;
  Reply<v1::AllocateResponse> last;
  for (Bytes taken = 0; taken < kLimit; taken += 8 * kMiB) {
    last = Ask(client, 8 * kMiB);
    if (!last.ok()) break;
    leases.push_back(last.message.leases(0).lease_id());
  }
  EXPECT_TRUE(Refused(last, grpc::StatusCode::RESOURCE_EXHAUSTED, v1::REASON_HOST_MEMORY_SHORT));
  EXPECT_GE(leases.size(), 8u);
  EXPECT_EQ(daemon.pid(), pid);
  EXPECT_TRUE(daemon.running());
  EXPECT_TRUE(AddsUp(client.Node()));
  for (const std::uint64_t id : leases) EXPECT_TRUE(Worked(client.Release(id)));
  EXPECT_TRUE(Worked(client.Release(kept.first.lease_id())));
  kept.second.clear();
  // There is room again, once the kernel has the pages.
  EXPECT_TRUE(Eventually([&] { return Ask(client, 128 * kMiB).ok(); }));
}

TEST(MemoryPressureTest, WhatOthersTakeWhileAChunkIsMadeEndsInARefusal) {
  const LimitedCgroup group(kLimit);
  if (!group.works()) GTEST_SKIP() << kNoLimits;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!group.Add(getpid())) _exit(3);
    memory::HostRequest request;
    request.size = 160 * kMiB;
    request.node = memory::NumaNodes().front().number;
    // After each slice another 16 MiB are gone.
    request.wanted = [] {
      void* const taken = mmap(nullptr, 16 * kMiB, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
      return taken != MAP_FAILED;
    };
    const Result<memory::HostChunk> chunk = memory::CreateHostChunk(request);
    if (chunk.ok()) _exit(1);
    _exit(chunk.error().reason == Reason::kHostMemoryShort ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace gpulease::e2e
