// SPDX-License-Identifier: Apache-2.0
//
// A runtime directory on a file system without room, as /run is when somebody has filled it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/keeper_process.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;

constexpr off_t kPage = 4096;

// A tmpfs of 256 KiB, in a mount namespace of this program's own.
class FullDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, "size=256k,mode=0755") != 0) {
      GTEST_SKIP() << "no tmpfs can be mounted here: " << std::strerror(errno);
    }
  }
  void TearDown() override { umount2(folder_.path().c_str(), MNT_DETACH); }

  std::string runtime_dir() const { return folder_.path() + "/run"; }
  DaemonOptions Options() const { return {.runtime_dir = runtime_dir()}; }
  // But for so many pages.
  void Fill(off_t pages_left = 0) const {
    const UniqueFd file(open(Filler().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    const std::string page(kPage, 'x');
    while (write(file.get(), page.data(), page.size()) > 0) {
    }
    ASSERT_EQ(errno, ENOSPC);
    ASSERT_EQ(ftruncate(file.get(), lseek(file.get(), 0, SEEK_END) - pages_left * kPage), 0);
  }
  void MakeRoom() const { std::filesystem::remove(Filler()); }
  std::string Filler() const { return folder_.path() + "/filler"; }

  TemporaryDirectory folder_;
};

class NearlyFullDirectoryTest : public FullDirectoryTest,
                                public ::testing::WithParamInterface<off_t> {};
INSTANTIATE_TEST_SUITE_P(PagesLeft, NearlyFullDirectoryTest, ::testing::Values(0, 1, 2));

// Seen with one page left: SIGBUS, in a node that had a size and no room.
TEST_P(NearlyFullDirectoryTest, ANodeWithoutRoomIsRefusedInASentenceAndLeavesNothing) {
  Fill(GetParam());
  DaemonOptions options = Options();
  options.await_ready = false;
  DaemonProcess daemon(options);
  EXPECT_EQ(daemon.AwaitEnd(kPatience), 1) << daemon.log();
  EXPECT_THAT(daemon.log(), HasSubstr("no room for the"));
  EXPECT_THAT(daemon.log(), HasSubstr("No space left on device"));
  EXPECT_TRUE(std::filesystem::is_empty(runtime_dir() + "/simulated"));
  MakeRoom();
  daemon.Start();
  ASSERT_TRUE(daemon.AwaitNotification("READY=1")) << daemon.log();
  RawClient client(daemon.runtime_dir());
  client.Connect();
  client.MustAllocate(DeviceSpec(2 * kMiB));
}

TEST_F(FullDirectoryTest, WhoServesNoSimulatedGpusNeedsNoRoom) {
  Fill();
  DaemonOptions options = Options();
  options.simulate = "";
  options.config = "expected_gpu_count: 0";
  DaemonProcess daemon(options);
  RawClient client(daemon.runtime_dir());
  client.Connect();
  client.MustAllocate(HostSpec(8192));
  const Ended second = RunProgram({BuiltProgram("gpuleased"), "--runtime-dir", runtime_dir()});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.output, HasSubstr("already running in"));
}

TEST_F(FullDirectoryTest, RestartsLoseNothingWhileItIsFull) {
  KeeperProcess keeper(runtime_dir());
  auto daemon = std::make_unique<DaemonProcess>(Options());
  RawClient client(runtime_dir());
  client.Connect();
  const auto device = client.MustAllocate(DeviceSpec(2 * kMiB, "device"));
  const auto host = client.MustAllocate(HostSpec(8192, "host"));
  const std::string text = "what it holds";
  for (const auto* lease : {&device, &host})
    ASSERT_EQ(pwrite(lease->second[0].get(), text.data(), text.size(), 0), 13);
  Fill();
  for (int i = 0; i < 3; ++i) {
    if (i == 1) {
      EXPECT_EQ(daemon->Stop(), 0) << daemon->log();
    } else {
      daemon->Kill();
    }
    daemon->Start();
    const Ended second = RunProgram({BuiltProgram("gpuleased"), "--runtime-dir", runtime_dir()});
    EXPECT_THAT(second.output, HasSubstr("(pid " + std::to_string(daemon->pid()) + ")"));
    RawClient other(runtime_dir());
    other.Connect();
    for (const char* name : {"device", "host"}) {
      const auto opened = other.Open(name);
      ASSERT_TRUE(Worked(opened));
      const auto chunks = other.Chunks(other.last_tag(), opened.message.lease().lease_id());
      ASSERT_TRUE(chunks.ok());
      std::string read(text.size(), ' ');
      ASSERT_EQ(pread((*chunks)[0].get(), read.data(), read.size(), 0), 13);
      EXPECT_EQ(read, text);
    }
    other.MustAllocate(DeviceSpec(2 * kMiB));
  }
}

// Nodes of earlier versions are files with holes.
TEST_F(FullDirectoryTest, ANodeWithHolesIsRefusedAndNotMapped) {
  std::filesystem::create_directory(runtime_dir());
  const std::string directory = runtime_dir() + "/simulated";
  ASSERT_TRUE(simulated::Node::Create(directory, {.gpus = {kGiB}}).ok());
  const std::string path = directory + "/node";
  const auto size = static_cast<off_t>(std::filesystem::file_size(path));
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kPage, size - kPage),
            0);
  Fill();
  const Result<simulated::Node> refused = simulated::Node::Open(directory);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("no room for the"));
  MakeRoom();
  Result<simulated::Node> node = simulated::Node::Open(directory);
  ASSERT_TRUE(node.ok()) << node.error().message;
  Fill();
  EXPECT_TRUE(node->InjectFault({.function = "cuInit"}).ok()) << "it has its room now";
}

}  // namespace
}  // namespace gpulease::e2e
