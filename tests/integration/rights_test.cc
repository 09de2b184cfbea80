// SPDX-License-Identifier: Apache-2.0
//
// Who may see and open what: clients of several users.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::uint32_t kAlice = 1000, kBob = 1001, kCarol = 1002;
constexpr std::uint32_t kTeam = 2000;

class RightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CanSwitchUsers()) GTEST_SKIP() << "clients of other users can be started by root alone";
    daemon_ = std::make_unique<DaemonProcess>(DaemonOptions{.uid = 1234});
    alice_ = Start({.uid = kAlice, .groups = {kTeam}});
    bob_ = Start({.uid = kBob, .groups = {kTeam}});
    carol_ = Start({.uid = kCarol});
  }
  std::unique_ptr<ClientProcess> Start(ClientOptions options) {
    auto client = std::make_unique<ClientProcess>(daemon_->runtime_dir(), std::move(options));
    client->Connect();
    return client;
  }
  std::string Own(const std::string& request) {
    const std::string answer = alice_->Ask(request);
    EXPECT_NE(ClientProcess::LeaseOf(answer), 0u) << answer;
    return std::to_string(ClientProcess::LeaseOf(answer));
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<ClientProcess> alice_, bob_, carol_;
};

TEST_F(RightsTest, WhatIsDeniedLooksLikeWhatIsMissing) {
  const std::string id = Own("device 2097152 name=secret mode=600");
  const std::string missing_name = bob_->Ask("open 1000/nothing ro");
  std::string denied_name = bob_->Ask("open 1000/secret ro");
  EXPECT_THAT(missing_name, StartsWith("error PERMISSION_DENIED REASON_NOT_OPENABLE"));
  const std::size_t at = denied_name.find("secret");
  ASSERT_NE(at, std::string::npos) << denied_name;
  denied_name.replace(at, 6, "nothing");
  EXPECT_EQ(denied_name, missing_name);

  std::string denied_id = bob_->Ask("open " + id + " ro");
  std::string missing_id = bob_->Ask("open 123456789 ro");
  const std::size_t id_at = denied_id.find(id);
  ASSERT_NE(id_at, std::string::npos) << denied_id;
  denied_id.replace(id_at, id.size(), "123456789");
  EXPECT_EQ(denied_id, missing_id);
}

TEST_F(RightsTest, AQueuedLeaseOfAnotherLooksLikeOneThatIsMissing) {
  Own("device 1073741824 name=one");
  Own("device 1073741824 name=two");
  const std::string waits = alice_->Ask("device 2097152 name=waits wait=600000 mode=600");
  ASSERT_THAT(waits, HasSubstr("queued"));
  EXPECT_THAT(bob_->Ask("open 1000/waits ro"), StartsWith("error PERMISSION_DENIED"));
  EXPECT_THAT(bob_->Ask("release " + std::to_string(ClientProcess::LeaseOf(waits))),
              StartsWith("error NOT_FOUND"));
}

TEST_F(RightsTest, TheModeSaysWhoMayReadAndWhoMayWrite) {
  Own("device 2097152 name=team mode=640 gid=2000");
  EXPECT_NE(ClientProcess::LeaseOf(bob_->Ask("open 1000/team ro")), 0u);
  EXPECT_THAT(bob_->Ask("open 1000/team rw"), StartsWith("error PERMISSION_DENIED"));
  EXPECT_THAT(carol_->Ask("open 1000/team ro"), StartsWith("error PERMISSION_DENIED"));

  Own("device 2097152 name=written mode=664 gid=2000");
  EXPECT_NE(ClientProcess::LeaseOf(bob_->Ask("open 1000/written rw")), 0u);
  EXPECT_NE(ClientProcess::LeaseOf(carol_->Ask("open 1000/written ro")), 0u);
  EXPECT_THAT(carol_->Ask("open 1000/written rw"), StartsWith("error PERMISSION_DENIED"));

  Own("device 2097152 name=all mode=666");
  EXPECT_NE(ClientProcess::LeaseOf(carol_->Ask("open 1000/all rw")), 0u);
}

TEST_F(RightsTest, AnotherSessionOfTheOwningUserFollowsTheModeToo) {
  Own("device 2097152 name=frozen mode=400");
  const auto again = Start({.uid = kAlice});
  EXPECT_NE(ClientProcess::LeaseOf(again->Ask("open frozen ro")), 0u);
  EXPECT_THAT(again->Ask("open frozen rw"), Not(StartsWith("1")));
}

TEST_F(RightsTest, OnlyTheOwnerReleases) {
  const std::string id = Own("device 2097152 name=hers mode=666");
  ASSERT_NE(ClientProcess::LeaseOf(bob_->Ask("open " + id + " rw")), 0u);
  EXPECT_THAT(bob_->Ask("release " + id), StartsWith("error NOT_FOUND"));
  EXPECT_EQ(bob_->Ask("close " + id), "ok");
  EXPECT_EQ(alice_->Ask("release " + id), "ok");
}

TEST_F(RightsTest, ListingsShowWhatOneOwnsHoldsOrMayOpen) {
  Own("device 2097152 name=private mode=600");
  Own("device 2097152 name=public mode=644");
  RawClient root(daemon_->runtime_dir());
  EXPECT_EQ(root.ListLeases().message.leases_size(), 2) << "an administrator sees all";
  EXPECT_EQ(root.ListSessions().message.sessions_size(), 3);
  EXPECT_EQ(carol_->Ask("leases"), "public");
  EXPECT_EQ(alice_->Ask("leases"), "private public");
  EXPECT_EQ(carol_->Ask("sessions"), "1");
}

TEST_F(RightsTest, AShortageDoesNotSayWhoseLeaseOneMayNotSee) {
  Own("device 1073741824 mode=600");
  Own("device 1073741824 mode=600");
  const std::string refused = bob_->Ask("device 2097152");
  EXPECT_THAT(refused, StartsWith("error UNAVAILABLE REASON_MEMORY_SHORT"));
  EXPECT_THAT(refused, Not(HasSubstr("pid " + std::to_string(alice_->pid()))));
}

TEST_F(RightsTest, TheSocketGroupKeepsOthersOut) {
  // Group 0 is there on every machine.
  DaemonProcess daemon({.config = "socket_group: \"root\""});
  ClientProcess outsider(daemon.runtime_dir(), {.uid = kAlice});
  EXPECT_THAT(outsider.Ask("dial"), StartsWith("error PERMISSION_DENIED"));
  EXPECT_THAT(outsider.Ask("node"), StartsWith("error UNAVAILABLE"));
  ClientProcess member(daemon.runtime_dir(), {.uid = kAlice, .groups = {0}});
  EXPECT_EQ(member.Ask("dial"), "ok");
}

TEST_F(RightsTest, AnAdministratorsGroupReleasesOthersLeases) {
  DaemonProcess daemon({.config = "admin_group: \"root\""});
  ClientProcess owner(daemon.runtime_dir(), {.uid = kAlice});
  owner.Connect();
  const std::uint64_t id = ClientProcess::LeaseOf(owner.Ask("device 2097152 name=x"));
  ASSERT_NE(id, 0u);
  ClientProcess member(daemon.runtime_dir(), {.uid = kBob, .groups = {0}});
  member.Connect();
  EXPECT_EQ(member.Ask("leases"), "x");
  EXPECT_EQ(member.Ask("release " + std::to_string(id)), "ok");
}

TEST_F(RightsTest, AnOperatorSeesEverythingAndChangesNothing) {
  DaemonProcess daemon({.config = "operator_group: \"root\""});
  ClientProcess owner(daemon.runtime_dir(), {.uid = kAlice});
  owner.Connect();
  const std::string id =
      std::to_string(ClientProcess::LeaseOf(owner.Ask("device 2097152 name=hers mode=600")));
  ClientProcess member(daemon.runtime_dir(), {.uid = kBob, .groups = {0}});
  member.Connect();
  EXPECT_EQ(member.Ask("leases"), "hers");
  EXPECT_EQ(member.Ask("sessions"), "2");
  EXPECT_THAT(member.Ask("release " + id), StartsWith("error NOT_FOUND"));
  EXPECT_THAT(member.Ask("open " + id + " ro"), StartsWith("error PERMISSION_DENIED"));
  ClientProcess other(daemon.runtime_dir(), {.uid = kCarol});
  other.Connect();
  EXPECT_EQ(other.Ask("leases"), "none");
  EXPECT_EQ(other.Ask("sessions"), "1");
}

TEST_F(RightsTest, LookingDeniedLooksLikeLookingForNothing) {
  const std::string id = Own("device 2097152 name=secret mode=600");
  RawClient client(daemon_->runtime_dir());
  const std::string missing = bob_->Ask("show 123456789");
  EXPECT_THAT(missing, StartsWith("error NOT_FOUND REASON_NOT_OPENABLE"));
  for (const std::string& name :
       {id, std::string("1000/secret"), std::string("1000/nothing"),
        std::string("no-such-user/secret"), std::string("1000@x/secret")}) {
    EXPECT_EQ(bob_->Ask("show " + name), missing) << name;
  }
}

TEST_F(RightsTest, ThatNobodyHasNoNameIsNoWayIn) {
  // The kernel shows every user that it cannot name as this one.
  ClientProcess unknown(daemon_->runtime_dir(), {.uid = 65534});
  EXPECT_EQ(unknown.Ask("dial"), "ok");
  EXPECT_THAT(unknown.Ask("hello"), StartsWith("error"));
  EXPECT_THAT(unknown.Ask("node"), StartsWith("error UNAVAILABLE"));
}

}  // namespace
}  // namespace gpulease::e2e
