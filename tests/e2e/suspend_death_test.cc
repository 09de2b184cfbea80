// SPDX-License-Identifier: Apache-2.0
//
// Who is killed at any step of a suspend or a resume, owner or holder, stops nobody and leaves
// nothing: real processes over the real daemon and a simulated GPU.
#include <gmock/gmock.h>
#include <gpulease/gpulease.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "driver/cuda_driver.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/forked_program.h"
#include "tests/e2e/keeper_process.h"

namespace gpulease::e2e {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Leader = ForkedProgram::Leader;

constexpr Bytes kSize = 8 * kMiB;
constexpr unsigned char kByte = 77;

std::shared_ptr<const driver::CudaDriver> Cuda(const std::string& directory) {
  auto loaded = driver::CudaDriver::Load({directory + "/simulated"});
  GPULEASE_CHECK(loaded.ok(), "the simulated driver");
  cuda::CUcontext context = nullptr;
  GPULEASE_CHECK((*loaded)->cuDevicePrimaryCtxRetain(&context, 0) == cuda::CUDA_SUCCESS &&
                     (*loaded)->cuCtxSetCurrent(context) == cuda::CUDA_SUCCESS,
                 "a context");
  return *loaded;
}

// Suspends and resumes as it is told. A step that is told with "!" stands still in the middle of
// its copy.
void RunOwner(Leader& leader, const std::string& directory) {
  const auto cuda = Cuda(directory);
  Client client({.runtime_dir = directory});
  Lease lease = client.Allocate({.size_bytes = kSize, .name = "weights"});
  const Mapping mapped = lease.Map();
  cuda->cuMemsetD8(mapped.device_pointer(), kByte, kSize);
  leader.Say("ready");
  for (;;) {
    const std::string told = leader.Await();
    CopyProgress stands_still;
    if (told.back() == '!') {
      stands_still = [&](std::uint64_t, std::uint64_t) {
        leader.Say("copying");
        static_cast<void>(leader.Await());
      };
    }
    if (told.starts_with("suspend")) {
      const auto waits = lease.Suspend({.progress = stands_still});
      leader.Say(waits.empty() ? "suspended" : "waits");
    } else {
      lease.Resume({.wait = seconds(60), .progress = stands_still});
      leader.Say("resumed");
    }
  }
}

// Follows, and says what it has: "right", "away", or the error.
void RunHolder(Leader& leader, const std::string& directory) {
  const auto cuda = Cuda(directory);
  Client client({.runtime_dir = directory});
  std::optional<Lease> lease = client.Open("weights");
  lease->TakePart();
  std::optional<Mapping> mapped = lease->Map();
  leader.Say("ready");
  for (;;) {
    if (leader.Await() == "close") {
      mapped.reset();
      lease.reset();
      leader.Say("closed");
      continue;
    }
    try {
      lease->Refresh();
    } catch (const Exception& error) {
      leader.Say(error.what());
      continue;
    }
    std::vector<unsigned char> bytes(kSize);
    const bool there =
        !lease->suspended() &&
        cuda->cuMemcpyDtoH(bytes.data(), mapped->device_pointer(), kSize) == cuda::CUDA_SUCCESS;
    leader.Say(!there                                              ? "away"
               : bytes == std::vector<unsigned char>(kSize, kByte) ? "right"
                                                                   : "wrong");
  }
}

class SuspendDeathTest : public ::testing::Test {
 protected:
  SuspendDeathTest()
      : keeper_(folder_.path() + "/run"),
        daemon_({.simulate = "1x1GiB", .runtime_dir = folder_.path() + "/run"}) {}
  ~SuspendDeathTest() override {
    EXPECT_TRUE(Eventually([&] {
      const v1::GetNodeResponse node = Node();
      Bytes host = 0;
      for (const v1::HostMemory& one : node.host()) host += one.memory().leased_bytes();
      return IsAllFree(node) && host == 0 && node.lease_count() == 0;
    })) << Node().ShortDebugString();
  }
  v1::GetNodeResponse Node() { return RawClient(daemon_.runtime_dir()).Node(); }
  Bytes DeviceBytes() {
    const v1::GetNodeResponse node = Node();
    return node.gpus(0).memory().total_bytes() - node.gpus(0).memory().free_bytes();
  }
  std::unique_ptr<ForkedProgram> Start(void (*run)(Leader&, const std::string&)) {
    auto program = std::make_unique<ForkedProgram>(
        [&](Leader& leader) { run(leader, daemon_.runtime_dir()); });
    EXPECT_EQ(program->Hear(), "ready");
    return program;
  }
  static std::string Say(ForkedProgram& program, const std::string& what) {
    program.Tell(what);
    return program.Hear();
  }

  TemporaryDirectory folder_;
  KeeperProcess keeper_;
  DaemonProcess daemon_;
};

TEST_F(SuspendDeathTest, TheOwnerBeforeTheMemoryIsCutLeavesItToTheOthers) {
  for (const bool copying : {false, true}) {
    for (const bool daemon_restarts : {false, true}) {
      auto owner = Start(RunOwner);
      auto holder = Start(RunHolder);
      ASSERT_EQ(Say(*owner, "suspend"), "waits");
      ASSERT_EQ(Say(*holder, "refresh"), "away");
      if (copying) ASSERT_EQ(Say(*owner, "suspend!"), "copying");
      if (daemon_restarts) daemon_.Kill();
      owner->Kill();
      if (daemon_restarts) daemon_.Start();
      EXPECT_TRUE(Eventually([&] { return Say(*holder, "refresh") == "right"; }));
      EXPECT_EQ(DeviceBytes(), kSize);
      EXPECT_EQ(Say(*holder, "close"), "closed");
      EXPECT_TRUE(Eventually([&] { return Node().lease_count() == 0; }));
    }
  }
}

TEST_F(SuspendDeathTest, TheOwnerAfterwardsTakesTheContentsWithHim) {
  for (const char* const step : {"suspended", "waiting for memory", "copying back"}) {
    for (const bool daemon_restarts : {false, true}) {
      auto owner = Start(RunOwner);
      auto holder = Start(RunHolder);
      ASSERT_EQ(Say(*owner, "suspend"), "waits");
      ASSERT_EQ(Say(*holder, "refresh"), "away");
      ASSERT_EQ(Say(*owner, "suspend"), "suspended");
      EXPECT_TRUE(Eventually([&] { return DeviceBytes() == 0; }));
      RawClient other(daemon_.runtime_dir());
      std::uint64_t filler = 0;
      if (step == std::string("waiting for memory")) {
        other.Connect();
        filler = other.MustAllocate(DeviceSpec(kGiB)).first.lease_id();
        owner->Tell("resume");
        EXPECT_TRUE(Eventually([&] { return Node().gpus(0).memory().queue_length() == 1; }));
      }
      if (step == std::string("copying back")) ASSERT_EQ(Say(*owner, "resume!"), "copying");
      // Not killed each time: a daemon that is, again and again, leaves what it took up alone.
      if (daemon_restarts && filler == 0) daemon_.Kill();
      if (daemon_restarts && filler != 0) EXPECT_EQ(daemon_.Stop(), 0);
      owner->Kill();
      if (daemon_restarts) daemon_.Start();
      EXPECT_TRUE(Eventually([&] {
        return Say(*holder, "refresh").find("its owner ended while it was suspended") !=
               std::string::npos;
      })) << step
          << ": " << Say(*holder, "refresh");
      // Its connection is made anew after a restart.
      if (filler != 0) EXPECT_TRUE(Eventually([&] { return other.Release(filler).ok(); }));
      EXPECT_TRUE(Eventually([&] { return DeviceBytes() == 0; })) << step;
      EXPECT_EQ(Say(*holder, "close"), "closed");
      EXPECT_TRUE(Eventually([&] { return Node().lease_count() == 0; })) << step;
    }
  }
}

TEST_F(SuspendDeathTest, AHolderIsNotWaitedForAnyMore) {
  for (const bool let_go : {false, true}) {
    auto owner = Start(RunOwner);
    auto holder = Start(RunHolder);
    ASSERT_EQ(Say(*owner, "suspend"), "waits");
    if (let_go) ASSERT_EQ(Say(*holder, "refresh"), "away");
    holder->Kill();
    EXPECT_TRUE(Eventually([&] { return Say(*owner, "suspend") == "suspended"; }));
    EXPECT_TRUE(Eventually([&] { return DeviceBytes() == 0; }));
    ASSERT_EQ(Say(*owner, "resume"), "resumed");
    auto reader = Start(RunHolder);
    EXPECT_EQ(Say(*reader, "refresh"), "right") << "the same bytes";
  }
}

TEST_F(SuspendDeathTest, AHolderMayDieWhileAllIsAway) {
  auto owner = Start(RunOwner);
  auto holder = Start(RunHolder);
  ASSERT_EQ(Say(*owner, "suspend"), "waits");
  ASSERT_EQ(Say(*holder, "refresh"), "away");
  ASSERT_EQ(Say(*owner, "suspend"), "suspended");
  holder->Kill();
  ASSERT_EQ(Say(*owner, "resume"), "resumed");
  auto reader = Start(RunHolder);
  EXPECT_EQ(Say(*reader, "refresh"), "right");
}

}  // namespace
}  // namespace gpulease::e2e
