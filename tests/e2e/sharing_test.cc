// SPDX-License-Identifier: Apache-2.0
//
// What one process writes another reads, and nobody reads what was not meant for him.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

using ::testing::StartsWith;

class SharingTest : public ::testing::TestWithParam<const char*> {
 protected:
  SharingTest() : daemon_({.simulate = "1x256MiB", .config = "largest_chunk: \"2MiB\""}) {}
  std::string Kind() const { return GetParam(); }
  DaemonProcess daemon_;
};

INSTANTIATE_TEST_SUITE_P(, SharingTest, ::testing::Values("device", "host"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(SharingTest, DataWrittenByOneIsReadByAnother) {
  ClientProcess writer(daemon_.runtime_dir()), reader(daemon_.runtime_dir());
  writer.Connect();
  reader.Connect();
  // Four chunks, of which the last is smaller.
  const std::string id =
      std::to_string(ClientProcess::LeaseOf(writer.Ask(Kind() + " 6700000 name=data")));
  ASSERT_NE(id, "0");
  ASSERT_EQ(writer.Ask("map " + id), "ok");
  EXPECT_EQ(writer.Ask("check " + id + " 0"), "yes") << "fresh memory reads as zeros";
  ASSERT_EQ(writer.Ask("fill " + id + " 165"), "ok");
  ASSERT_EQ(std::to_string(ClientProcess::LeaseOf(reader.Ask("open data ro"))), id);
  ASSERT_EQ(reader.Ask("map " + id + " ro"), "ok");
  EXPECT_EQ(reader.Ask("check " + id + " 165"), "yes");
  ASSERT_EQ(writer.Ask("fill " + id + " 90"), "ok");
  EXPECT_EQ(reader.Ask("check " + id + " 90"), "yes");
}

TEST_P(SharingTest, NobodyReadsWhatAnotherLeft) {
  RawClient observer(daemon_.runtime_dir());
  for (int round = 0; round < 3; ++round) {
    ClientProcess client(daemon_.runtime_dir());
    client.Connect();
    const std::string answer = client.Ask(Kind() + " 67108863");
    const std::string id = std::to_string(ClientProcess::LeaseOf(answer));
    ASSERT_NE(id, "0") << answer;
    ASSERT_EQ(client.Ask("map " + id), "ok");
    EXPECT_EQ(client.Ask("check " + id + " 0"), "yes");
    ASSERT_EQ(client.Ask("fill " + id + " 255"), "ok");
    if (round == 0) {
      ASSERT_EQ(client.Ask("release " + id), "ok");
    }
    client.Kill();
    EXPECT_TRUE(Eventually([&] { return IsAllFree(observer.Node()); }));
  }
}

TEST_P(SharingTest, HoweverALeaseEndsTheNextOwnerFindsZerosToItsLastByte) {
  // All of the memory each time, so that the next has what the former had; the odd size leaves a
  // tail in the last page. Half of it for host memory, which is real.
  const Bytes most = (Kind() == "device" ? 256 : 64) * kMiB - 4095;
  RawClient administrator(daemon_.runtime_dir());
  for (const std::string end : {"released", "killed", "forced", "forked", "closed"}) {
    ClientProcess client(daemon_.runtime_dir());
    client.Connect();
    const std::string answer = client.Ask(Kind() + " " + std::to_string(most) + " wait=60000");
    std::string id = std::to_string(ClientProcess::LeaseOf(answer));
    ASSERT_NE(id, "0") << end << ": " << answer;
    if (answer.find("queued") != std::string::npos) client.Ask("await " + id);
    ASSERT_EQ(client.Ask("map " + id), "ok");
    EXPECT_EQ(client.Ask("check " + id + " 0"), "yes") << "before it was " << end;
    ASSERT_EQ(client.Ask("fill " + id + " 255"), "ok");
    if (end == "released") {
      ASSERT_EQ(client.Ask("unmap " + id), "ok");
      ASSERT_EQ(client.Ask("drop " + id), "ok");
      ASSERT_EQ(client.Ask("release " + id), "ok");
      client.Exit();
    } else if (end == "closed") {
      client.Exit();
    } else if (end == "forked") {
      // A child that has it mapped outlives its parent: until it ends nobody gets the memory.
      const pid_t child = std::stoi(client.Ask("fork"));
      client.Kill();
      EXPECT_FALSE(IsAllFree(administrator.Node()));
      kill(child, SIGKILL);
    } else {
      if (end == "forced")
        ASSERT_TRUE(Worked(administrator.Release(ClientProcess::LeaseOf(id), true)));
      client.Kill();
    }
    ASSERT_TRUE(Eventually([&] { return IsAllFree(administrator.Node()); })) << end;
  }
  ClientProcess last(daemon_.runtime_dir());
  last.Connect();
  const std::string id =
      std::to_string(ClientProcess::LeaseOf(last.Ask(Kind() + " " + std::to_string(most))));
  ASSERT_EQ(last.Ask("map " + id), "ok");
  EXPECT_EQ(last.Ask("check " + id + " 0"), "yes");
}

class HostMemoryTest : public ::testing::Test {
 protected:
  HostMemoryTest() : daemon_({.uid = CanSwitchUsers() ? std::optional(1234u) : std::nullopt}) {}
  DaemonProcess daemon_;
};

TEST_F(HostMemoryTest, ALeaseSaysWhereItIsAndOfWhatPages) {
  RawClient client(daemon_.runtime_dir());
  client.Connect();
  v1::AllocationSpec spec = HostSpec(100'000, "table");
  spec.set_page_size(v1::PAGE_SIZE_SMALL);
  const auto [lease, chunks] = client.MustAllocate(spec);
  EXPECT_EQ(lease.kind(), v1::MEMORY_KIND_HOST);
  EXPECT_EQ(lease.requested_bytes(), 100'000u);
  EXPECT_EQ(lease.size_bytes() % 4096, 0u);
  EXPECT_GE(lease.size_bytes(), 100'000u);
  EXPECT_EQ(lease.page_size(), v1::PAGE_SIZE_SMALL);
  EXPECT_GE(lease.numa_node(), 0);
  EXPECT_TRUE(lease.gpu_uuid().empty());
  EXPECT_EQ(chunks.size(), 1u);
  const v1::GetNodeResponse node = client.Node();
  EXPECT_TRUE(AddsUp(node));
  std::uint64_t leased = 0;
  for (const v1::HostMemory& host : node.host()) {
    leased += host.memory().leased_bytes() + host.memory().offered_bytes();
  }
  EXPECT_EQ(leased, lease.size_bytes());
}

TEST_F(HostMemoryTest, HugePagesThatAreNotThereAreRefusedWithAdvice) {
  RawClient client(daemon_.runtime_dir());
  client.Connect();
  if (client.Node().host(0).huge_page_free_bytes() >= 1024 * kMiB) {
    GTEST_SKIP() << "this machine has a pool of huge pages";
  }
  v1::AllocationSpec spec = HostSpec(1024 * kMiB);
  spec.set_page_size(v1::PAGE_SIZE_HUGE);
  const auto reply = client.Allocate({spec});
  EXPECT_TRUE(Refused(reply, grpc::StatusCode::RESOURCE_EXHAUSTED, v1::REASON_HOST_MEMORY_SHORT));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(client.Node()); }));
}

TEST_F(HostMemoryTest, AReaderOfAnotherUserCannotWrite) {
  if (!CanSwitchUsers()) GTEST_SKIP() << "clients of other users can be started by root alone";
  ClientProcess owner(daemon_.runtime_dir(), {.uid = 1000});
  owner.Connect();
  const std::string id =
      std::to_string(ClientProcess::LeaseOf(owner.Ask("host 8192 name=table mode=644")));
  ASSERT_EQ(owner.Ask("map " + id), "ok");
  ASSERT_EQ(owner.Ask("fill " + id + " 17"), "ok");
  ClientProcess reader(daemon_.runtime_dir(), {.uid = 1001});
  reader.Connect();
  ASSERT_EQ(std::to_string(ClientProcess::LeaseOf(reader.Ask("open 1000/table ro"))), id);
  EXPECT_EQ(reader.Ask("map " + id + " ro"), "ok");
  EXPECT_EQ(reader.Ask("check " + id + " 17"), "yes");
  EXPECT_EQ(reader.Ask("poke " + id), "EACCES");
  EXPECT_EQ(reader.Ask("reopen " + id), "EACCES");
  EXPECT_THAT(reader.Ask("map " + id), StartsWith("error"));
  EXPECT_EQ(owner.Ask("check " + id + " 17"), "yes");
  // Nor does the owner's own right end.
  EXPECT_EQ(owner.Ask("poke " + id), "ok");
}

TEST_F(HostMemoryTest, TheChunkCannotBeCutUnderAnybodysFeet) {
  RawClient client(daemon_.runtime_dir());
  client.Connect();
  const auto [lease, chunks] = client.MustAllocate(HostSpec(8192));
  EXPECT_EQ(ftruncate(chunks[0].get(), 0), -1);
  EXPECT_EQ(ftruncate(chunks[0].get(), 1 << 20), -1);
}

TEST_F(HostMemoryTest, MemoryThatAHolderStillMapsIsNotFree) {
  RawClient observer(daemon_.runtime_dir());
  ClientProcess client(daemon_.runtime_dir());
  client.Connect();
  const std::string id = std::to_string(ClientProcess::LeaseOf(client.Ask("host 1048576")));
  ASSERT_EQ(client.Ask("map " + id), "ok");
  ASSERT_EQ(client.Ask("drop " + id), "ok");
  ASSERT_EQ(client.Ask("release " + id), "ok");
  const auto releasing = [&] {
    std::uint64_t bytes = 0;
    const v1::GetNodeResponse node = observer.Node();
    for (const v1::HostMemory& host : node.host()) {
      bytes += host.memory().releasing_bytes() + host.memory().unconfirmed_bytes();
    }
    return bytes;
  };
  EXPECT_EQ(releasing(), kMiB);
  EXPECT_TRUE(AddsUp(observer.Node()));
  ASSERT_EQ(client.Ask("unmap " + id), "ok");
  EXPECT_TRUE(Eventually([&] { return releasing() == 0; }));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(observer.Node()); }));
}

}  // namespace
}  // namespace gpulease::e2e
