// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

TEST(DescriptorLimitTest, LeasesEndAtTheDaemonsLimitAndGoOnAfterARelease) {
  DaemonProcess daemon(
      {.simulate = "1x16GiB", .config = "largest_chunk: \"2MiB\"", .open_files = 300});
  RawClient client(daemon.runtime_dir());
  client.Connect();
  std::vector<std::uint64_t> leases;
  Reply<v1::AllocateResponse> last;
  for (int i = 0; i < 100; ++i) {
    last = client.Allocate({i % 2 == 0 ? DeviceSpec(8 * kMiB) : HostSpec(8192)});
    if (!last.ok()) break;
    const std::uint64_t id = last.message.leases(0).lease_id();
    ASSERT_TRUE(client.Chunks(client.last_tag(), id).ok());
    leases.push_back(id);
  }
  EXPECT_TRUE(Refused(last, grpc::StatusCode::RESOURCE_EXHAUSTED, v1::REASON_DESCRIPTOR_LIMIT));
  EXPECT_GT(leases.size(), 30u);
  EXPECT_TRUE(AddsUp(client.Node()));
  EXPECT_LE(client.Node().descriptors_used(), client.Node().descriptors_limit());
  // A request that is larger than the limit itself need not wait for anything.
  EXPECT_TRUE(Refused(client.Allocate({DeviceSpec(kGiB)}), grpc::StatusCode::INVALID_ARGUMENT,
                      v1::REASON_TOO_LARGE) ||
              Refused(client.Allocate({DeviceSpec(kGiB)}), grpc::StatusCode::RESOURCE_EXHAUSTED,
                      v1::REASON_DESCRIPTOR_LIMIT));
  // Others still connect and look.
  RawClient late(daemon.runtime_dir());
  late.Connect();
  EXPECT_TRUE(Worked(late.GetNode()));
  for (const std::uint64_t id : leases) ASSERT_TRUE(Worked(client.Release(id)));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(client.Node()); }));
  EXPECT_TRUE(Worked(client.Allocate({DeviceSpec(64 * kMiB)})));
}

TEST(DescriptorLimitTest, ALimitThatIsTooSmallIsRefusedAtStart) {
  TemporaryDirectory folder;
  const Ended ended = RunProgram({"/bin/sh", "-c",
                                  "ulimit -n 100; exec " + BuiltProgram("gpuleased") +
                                      " --simulate 1GiB --runtime-dir " + folder.path() + "/run"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.output, ::testing::HasSubstr("LimitNOFILE"));
}

TEST(DescriptorLimitTest, TheSoftLimitIsRaisedToTheHardOne) {
  DaemonProcess daemon({.open_files = 5000});
  RawClient client(daemon.runtime_dir());
  EXPECT_EQ(client.Node().descriptors_limit(), 5000u);
}

}  // namespace
}  // namespace gpulease::e2e
