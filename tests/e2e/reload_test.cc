// SPDX-License-Identifier: Apache-2.0
//
// The configuration read again by SIGHUP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Tenant(const std::string& device_limit) {
  return "tenants { name: \"mine\" uid: " + std::to_string(getuid()) + " device_limit: \"" +
         device_limit + "\" }\n";
}

class ReloadTest : public ::testing::Test {
 protected:
  ReloadTest() : daemon_({.config = Tenant("64MiB")}), client_(daemon_.runtime_dir()) {
    client_.Connect();
  }
  // Has the daemon read `text`; what it says in its log about that.
  std::string Reload(const std::string& text) {
    daemon_.WriteConfig(text);
    const std::size_t before = daemon_.log().size();
    const std::size_t said = daemon_.notifications().size();
    daemon_.Signal(SIGHUP);
    EXPECT_TRUE(Eventually([&] {
      const std::string more = daemon_.notifications().substr(said);
      const std::size_t reloading = more.find("RELOADING=1");
      return reloading != std::string::npos && more.find("READY=1", reloading) != std::string::npos;
    })) << daemon_.log();
    return daemon_.log().substr(before);
  }

  DaemonProcess daemon_;
  RawClient client_;
};

TEST_F(ReloadTest, AHigherLimitGrantsWhatWaitsForIt) {
  client_.MustAllocate(DeviceSpec(64 * kMiB));
  const auto waiting = client_.Allocate({DeviceSpec(64 * kMiB)}, 600'000);
  ASSERT_TRUE(Worked(waiting));
  EXPECT_EQ(waiting.message.leases(0).state(), v1::LEASE_STATE_QUEUED);
  EXPECT_THAT(Reload(Tenant("128MiB")), HasSubstr("changed tenants"));
  EXPECT_TRUE(Worked(client_.Await(waiting.message.leases(0).lease_id())));
}

TEST_F(ReloadTest, AMistakeChangesNothingAndIsNamedByFileLineAndField) {
  const std::string said = Reload(Tenant("1GiB") + "\nsession_grace_ms: 1\nwaits_per_user: 0\n");
  EXPECT_THAT(said, HasSubstr("nothing was changed"));
  EXPECT_THAT(said, HasSubstr("gpuleased.textproto:4: waits_per_user: 0 is outside"));
  EXPECT_THAT(daemon_.notifications(), HasSubstr("the last reload changed nothing"));
  EXPECT_TRUE(Refused(client_.Allocate({DeviceSpec(128 * kMiB)}),
                      grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_TOO_LARGE));
  EXPECT_EQ(client_.Node().tenants(0).device_limit_bytes(), 64 * kMiB);
  EXPECT_THAT(Reload(Tenant("1GiB") + "admin_group: \"no-such-group\""),
              HasSubstr("there is no group \"no-such-group\""));
  EXPECT_EQ(client_.Node().tenants(0).device_limit_bytes(), 64 * kMiB);
  // And what is right after that is taken.
  Reload(Tenant("1GiB"));
  EXPECT_EQ(client_.Node().tenants(0).device_limit_bytes(), kGiB);
}

TEST_F(ReloadTest, WhatCannotChangeIsNamedAndTheRestChanges) {
  const std::string said =
      Reload(Tenant("64MiB") + "host_memory_percent: 20\ndevice_headroom: \"1000MiB\"\n");
  EXPECT_THAT(said, HasSubstr("changed device_headroom"));
  EXPECT_THAT(said, HasSubstr("at the next start takes effect: host_memory_percent"));
  EXPECT_TRUE(Refused(client_.Allocate({DeviceSpec(32 * kMiB)}), grpc::StatusCode::INVALID_ARGUMENT,
                      v1::REASON_TOO_LARGE));
}

TEST_F(ReloadTest, LimitsHoldForWhoComesNext) {
  Reload(Tenant("64MiB") + "sessions_per_user: 1\n");
  RawClient second(daemon_.runtime_dir());
  ASSERT_TRUE(second.Dial().ok());
  const auto refused = second.Hello();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().reason, Reason::kSessionLimit);
  Reload(Tenant("64MiB") + "session_grace_ms: 1234\n");
  RawClient third(daemon_.runtime_dir());
  ASSERT_TRUE(third.Dial().ok());
  const auto welcome = third.Hello();
  ASSERT_TRUE(welcome.ok());
  EXPECT_EQ(welcome->grace_ms, 1234u);
}

TEST_F(ReloadTest, TheLogBecomesQuieterAndIsToldSo) {
  EXPECT_THAT(Reload(Tenant("64MiB") + "log_level: \"error\""), HasSubstr("changed log_level"));
  EXPECT_EQ(daemon_.Stop(), 0);
  EXPECT_THAT(daemon_.log(), Not(HasSubstr("stopping")));
}

TEST_F(ReloadTest, TheSameFileChangesNothing) {
  EXPECT_THAT(Reload(Tenant("64MiB")), HasSubstr("nothing changes now"));
}

TEST(ReloadWithoutFileTest, HasNothingToRead) {
  DaemonProcess daemon;
  daemon.Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] {
    return daemon.log().find("there is no configuration file to read again") != std::string::npos;
  }));
  EXPECT_TRUE(daemon.running());
}

}  // namespace
}  // namespace gpulease::e2e
