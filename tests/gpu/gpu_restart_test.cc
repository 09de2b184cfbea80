// SPDX-License-Identifier: Apache-2.0
//
// The daemon's death with much of a real GPU leased, and the keeper beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/keeper_process.h"
#include "tests/e2e/raw_client.h"
#include "tests/gpu/real_gpu.h"
#include "tests/gpu/worker_process.h"

namespace gpulease::gpu_test {
namespace {

using e2e::Eventually;

// Two workers with 100 leases each; 50 GiB each where the GPU has room for it.
class GpuRestartTest : public RealGpuTest {
 protected:
  void Begin() override {
    each_ = std::min<Bytes>(512 * kMiB, total_ / 250 / (2 * kMiB) * 2 * kMiB);
    keeper_ = std::make_unique<e2e::KeeperProcess>(runtime_dir_);
    daemon_ = std::make_unique<e2e::DaemonProcess>(
        e2e::DaemonOptions{.simulate = "", .runtime_dir = runtime_dir_});
    with_daemon_ = Used();
    for (const std::string name : {"left", "right"}) {
      workers_.push_back(std::make_unique<Worker>(
          runtime_dir_,
          std::vector<std::string>{"fill-many", name, "100", std::to_string(each_), "1000"}));
    }
    for (auto& worker : workers_) ASSERT_EQ(worker->Line(), "filled");
  }
  std::string Check(const std::string& name) {
    return Worker(runtime_dir_, {"check-many", name, "100", "1000"}).Line();
  }
  Bytes Leased() {
    const v1::GetNodeResponse node = e2e::RawClient(runtime_dir_).Node();
    return node.gpus(0).memory().leased_bytes();
  }
  // From the start of the next daemon to its first answer.
  double Restart() {
    const auto start = std::chrono::steady_clock::now();
    daemon_->Start();
    e2e::RawClient(runtime_dir_).Node();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  e2e::TemporaryDirectory folder_;
  const std::string runtime_dir_ = folder_.path() + "/run";
  Bytes each_ = 0;
  Bytes with_daemon_ = 0;  // used by it alone
  std::unique_ptr<e2e::KeeperProcess> keeper_;
  std::unique_ptr<e2e::DaemonProcess> daemon_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST_F(GpuRestartTest, EveryByteOfAKilledDaemonsLeasesIsThereAgain) {
  daemon_->Kill();
  const double seconds = Restart();
  EXPECT_EQ(Leased(), 200 * each_);
  EXPECT_EQ(Check("left"), "wrong 0");
  EXPECT_EQ(Check("right"), "wrong 0");
  std::printf("200 leases of %s in all: served again %.2f s after the next daemon's start\n",
              FormatBytes(200 * each_).c_str(), seconds);
}

TEST_F(GpuRestartTest, OfThoseKilledWithItEveryByteComesBack) {
  daemon_->Kill();
  workers_[0]->Kill();
  Restart();
  EXPECT_TRUE(Eventually([&] { return Leased() == 100 * each_; })) << Leased();
  EXPECT_EQ(Check("right"), "wrong 0");
  workers_[1]->End();
  EXPECT_TRUE(Eventually([&] { return Leased() == 0; }));
  // The driver's own books in two lives of the daemon may differ, by less than the smallest lease.
  EXPECT_TRUE(Eventually([&] { return Used() < with_daemon_ + 2 * kMiB; }))
      << Used() << " instead of " << with_daemon_;
}

}  // namespace
}  // namespace gpulease::gpu_test
