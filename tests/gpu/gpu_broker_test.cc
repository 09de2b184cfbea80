// SPDX-License-Identifier: Apache-2.0
//
// The real daemon, real processes and a real GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/raw_client.h"
#include "tests/gpu/real_gpu.h"
#include "tests/gpu/worker_process.h"

namespace gpulease::gpu_test {
namespace {

using e2e::DaemonProcess;
using e2e::Eventually;

class GpuBrokerTest : public RealGpuTest {
 protected:
  void Begin() override {
    daemon_ = std::make_unique<DaemonProcess>(e2e::DaemonOptions{.simulate = ""});
  }
  bool ShowsAProcess() const { return !nvml_->Processes(uuid_)->empty(); }
  std::string Ask(std::vector<std::string> arguments) {
    return Worker(daemon_->runtime_dir(), std::move(arguments)).Line();
  }

  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(GpuBrokerTest, TheDaemonCostsLessThan8MiBAndIsNoProcessOnTheGpu) {
  EXPECT_LT(Used() - before_, 8 * kMiB);
  EXPECT_FALSE(ShowsAProcess());
  std::printf("the daemon uses %s of GPU memory\n", FormatBytes(Used() - before_).c_str());
}

TEST_F(GpuBrokerTest, TwoProcessesReadWhatAThirdWrote) {
  Worker writer(daemon_->runtime_dir(), {"fill", "weights", std::to_string(4 * kGiB), "7"});
  ASSERT_EQ(writer.Line(), "filled");
  Worker one(daemon_->runtime_dir(), {"check", "weights", "7"});
  Worker two(daemon_->runtime_dir(), {"check", "weights", "7"});
  EXPECT_EQ(one.Line(), "wrong 0");
  EXPECT_EQ(two.Line(), "wrong 0");
  EXPECT_EQ(Ask({"check", "weights", "8"}), "wrong " + std::to_string(kGiB))
      << "the check finds nothing wrong";
}

TEST_F(GpuBrokerTest, WhatIsPublishedBeforeItsKernelsHaveRunIsThereForWhoWaits) {
  for (const std::string how : {"", "stream"}) {
    Worker writer(daemon_->runtime_dir(),
                  {"publish", "frames", std::to_string(64 * kMiB), "7", "3"});
    ASSERT_EQ(writer.Line(), "published");
    Worker reader(daemon_->runtime_dir(), {"await", "frames", "7", how});
    ASSERT_EQ(reader.Line(), "waits");
    EXPECT_EQ(reader.Line(), "wrong 0") << how;
  }
}

// The driver never completes the event of a process that was killed.
TEST_F(GpuBrokerTest, APublisherThatIsKilledInTheMiddleOfItsKernelsEndsTheWait) {
  Worker writer(daemon_->runtime_dir(),
                {"publish", "frames", std::to_string(64 * kMiB), "7", "60"});
  ASSERT_EQ(writer.Line(), "published");
  Worker reader(daemon_->runtime_dir(), {"await", "frames", "7"});
  ASSERT_EQ(reader.Line(), "waits");
  writer.Kill();
  EXPECT_THAT(reader.Line(), testing::HasSubstr("has died"));
}

TEST_F(GpuBrokerTest, AReadOnlyOpenersStoreFailsInItAlone) {
  Worker writer(daemon_->runtime_dir(), {"fill", "weights", std::to_string(64 * kMiB), "7"});
  ASSERT_EQ(writer.Line(), "filled");
  EXPECT_EQ(Ask({"store", "weights"}), "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(Ask({"check", "weights", "7"}), "wrong 0");
}

TEST_F(GpuBrokerTest, AnotherUserOpensWhatHeMayAndNothingElse) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can start clients of other users";
  Worker writer(daemon_->runtime_dir(), {"fill", "weights", std::to_string(64 * kMiB), "7"});
  ASSERT_EQ(writer.Line(), "filled");
  EXPECT_EQ(Ask({"open", "root/weights", "1234"}), "opened");
  EXPECT_EQ(Ask({"open", "root/secrets", "1234"}), "7") << "PERMISSION_DENIED";
}

TEST_F(GpuBrokerTest, AKilledWritersMemoryComesBackWithNoByteOfIts) {
  const Bytes most = total_ / 10 * 8;
  Worker writer(daemon_->runtime_dir(), {"scribble", "scratch", std::to_string(most), "180"});
  ASSERT_EQ(writer.Line(), "started");
  // The next owner waits for the same bytes and finds them zero, and still zero while it looks.
  Worker next(daemon_->runtime_dir(), {"check-zero", std::to_string(most)});
  const auto killed = std::chrono::steady_clock::now();
  writer.Kill();
  const auto dead = std::chrono::steady_clock::now();
  EXPECT_EQ(next.Line(), "nonzero 0");
  std::printf("killed with 180 s of kernels in flight: dead after %lld ms\n",
              static_cast<long long>(
                  std::chrono::duration_cast<std::chrono::milliseconds>(dead - killed).count()));
}

TEST_F(GpuBrokerTest, HoweverALeaseEndsTheNextOwnerFindsZerosToItsLastByte) {
  // Nearly all of the GPU, so that the next has the same memory; odd sizes, so that a tail is left
  // over in the last granule.
  const Bytes most = total_ / 10 * 8 + 4;
  for (const std::string end : {"released", "killed", "forced"}) {
    Worker writer(daemon_->runtime_dir(), {"fill", "scratch", std::to_string(most), "7"});
    ASSERT_EQ(writer.Line(), "filled") << end;
    Worker next(daemon_->runtime_dir(), {"check-zero", std::to_string(most)});
    if (end == "released") {
      writer.End();
    } else {
      if (end == "forced") {
        // While the writer maps it still, nobody gets it: the next waits.
        e2e::RawClient administrator(daemon_->runtime_dir());
        const auto lease = administrator.GetLease("scratch");
        ASSERT_TRUE(lease.ok()) << lease.status.error_message();
        ASSERT_TRUE(administrator.Release(lease.message.lease().lease_id(), true).ok());
      }
      writer.Kill();
    }
    EXPECT_EQ(next.Line(), "nonzero 0") << end;
  }
}

TEST_F(GpuBrokerTest, WeightsAreLoadedOnceInFreshMemoryAndOutliveWhoLoadedThem) {
  const std::vector<std::string> load = {"load", "weights", std::to_string(4 * kGiB), "7"};
  Worker half(daemon_->runtime_dir(), {"load", "weights", std::to_string(4 * kGiB), "7", "half"});
  ASSERT_EQ(half.Line(), "half");
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < 3; ++i)
    workers.push_back(std::make_unique<Worker>(daemon_->runtime_dir(), load));
  half.Kill();
  int filled = 0;
  for (auto& worker : workers) {
    const std::string said = worker->Line();
    filled += said == "filled";
    EXPECT_TRUE(said == "filled" || said == "wrong 0") << said;
    worker->End();
  }
  EXPECT_EQ(filled, 1);
  EXPECT_EQ(Ask(load), "wrong 0") << "nobody has it any more, and it is there";
  e2e::RawClient client(daemon_->runtime_dir());
  const auto lease = client.GetLease("weights");
  ASSERT_TRUE(lease.ok());
  EXPECT_TRUE(lease.message.lease().orphan() && lease.message.lease().sealed());
  EXPECT_TRUE(client.Release(lease.message.lease().lease_id()).ok());
  EXPECT_TRUE(Eventually([&] { return client.Node().lease_count() == 0; }));
}

TEST_F(GpuBrokerTest, AnElasticLeaseGrowsUnderAKernelThatUsesItsStart) {
  const std::string said = Ask({"elastic", std::to_string(32 * kGiB), std::to_string(512 * kMiB)});
  EXPECT_THAT(said, testing::StartsWith("wrong 0,"));
  std::printf("to 32 GiB in steps of 512 MiB: %s\n", said.c_str());
  EXPECT_TRUE(Eventually([&] { return Used() - before_ < 8 * kMiB; }));
}

TEST_F(GpuBrokerTest, WhatIsSuspendedComesBackUnderItsPointer) {
  const std::string said = Ask({"suspend", std::to_string(16 * kGiB)});
  std::printf("16 GiB: %s\n", said.c_str());
  EXPECT_THAT(said, testing::StartsWith("wrong 0,"));
  EXPECT_TRUE(Eventually([&] { return Used() - before_ < 8 * kMiB; }));
}

TEST_F(GpuBrokerTest, AThousandRoundsEndWhereTheyBegan) {
  ASSERT_EQ(Ask({"rounds", "10", std::to_string(256 * kMiB)}), "done");
  ASSERT_TRUE(Eventually([&] { return !ShowsAProcess(); }));
  const Bytes used = Used();
  const std::size_t descriptors = daemon_->open_descriptors();
  ASSERT_EQ(Ask({"rounds", "1000", std::to_string(256 * kMiB)}), "done");
  EXPECT_TRUE(Eventually([&] { return Used() == used; })) << Used() << " instead of " << used;
  EXPECT_TRUE(Eventually([&] { return daemon_->open_descriptors() == descriptors; }))
      << daemon_->open_descriptors() << " instead of " << descriptors;
}

}  // namespace
}  // namespace gpulease::gpu_test
