// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/watch_stream.h"

namespace gpulease::e2e {
namespace {

class WatchTest : public ::testing::Test {
 protected:
  WatchTest() : daemon_({.simulate = "1x1GiB"}), client_(daemon_.runtime_dir()) {
    client_.Connect();
  }
  DaemonProcess daemon_;
  RawClient client_;
};

TEST_F(WatchTest, TheFirstEventSaysThatTheStreamIsReady) {
  WatchStream watch(client_, client_.session_id());
  const auto event = watch.Next();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->type(), v1::Event::TYPE_READY);
}

TEST_F(WatchTest, AGrantAReleaseAndAnOwnersDeathAreTold) {
  WatchStream watch(client_, client_.session_id());
  ASSERT_TRUE(watch.Next(v1::Event::TYPE_READY));
  ClientProcess owner(daemon_.runtime_dir());
  owner.Connect();
  const std::uint64_t large = ClientProcess::LeaseOf(owner.Ask("device 1073741824 name=large"));
  ASSERT_NE(large, 0u);
  ASSERT_TRUE(Worked(client_.Open(large)));
  ASSERT_TRUE(client_.Chunks(client_.last_tag(), large).ok());

  const auto queued = client_.Allocate({DeviceSpec(2 * kMiB, "mine")}, 600'000);
  ASSERT_TRUE(Worked(queued));
  ASSERT_EQ(owner.Ask("release " + std::to_string(large)), "ok");
  const auto released = watch.Next(v1::Event::TYPE_RELEASED);
  ASSERT_TRUE(released);
  EXPECT_EQ(released->lease_id(), large);
  EXPECT_EQ(released->name(), "large");
  ASSERT_EQ(owner.Ask("drop " + std::to_string(large)), "ok");
  ASSERT_TRUE(Worked(client_.Close(large)));
  const auto granted = watch.Next(v1::Event::TYPE_GRANTED);
  ASSERT_TRUE(granted);
  EXPECT_EQ(granted->lease_id(), queued.message.leases(0).lease_id());
  EXPECT_EQ(granted->name(), "mine");
  EXPECT_GT(granted->sequence(), released->sequence());

  const std::uint64_t small = ClientProcess::LeaseOf(owner.Ask("device 2097152 name=small"));
  ASSERT_TRUE(Worked(client_.Open(small)));
  ASSERT_TRUE(client_.Chunks(client_.last_tag(), small).ok());
  owner.Kill();
  const auto gone = watch.Next(v1::Event::TYPE_OWNER_GONE);
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->lease_id(), small);
}

TEST_F(WatchTest, AnExpiredWaitIsTold) {
  WatchStream watch(client_, client_.session_id());
  ASSERT_TRUE(watch.Next(v1::Event::TYPE_READY));
  const auto held = client_.MustAllocate(DeviceSpec(kGiB));
  const auto queued = client_.Allocate({DeviceSpec(1)}, 50);
  ASSERT_TRUE(Worked(queued));
  const auto expired = watch.Next(v1::Event::TYPE_EXPIRED);
  ASSERT_TRUE(expired);
  EXPECT_EQ(expired->lease_id(), queued.message.leases(0).lease_id());
}

TEST_F(WatchTest, AnAdministratorsReleaseIsToldAsRevoked) {
  if (geteuid() != 0) GTEST_SKIP() << "this test's user is no administrator";
  WatchStream watch(client_, client_.session_id());
  ASSERT_TRUE(watch.Next(v1::Event::TYPE_READY));
  const auto held = client_.MustAllocate(DeviceSpec(1, "wanted"));
  RawClient administrator(daemon_.runtime_dir());
  ASSERT_TRUE(Worked(administrator.Release(held.first.lease_id())));
  const auto revoked = watch.Next(v1::Event::TYPE_REVOKED);
  ASSERT_TRUE(revoked);
  EXPECT_EQ(revoked->lease_id(), held.first.lease_id());
  EXPECT_EQ(client_.GetLease(held.first.lease_id()).message.lease().state(),
            v1::LEASE_STATE_REVOKING);
  ASSERT_TRUE(Worked(client_.Release(held.first.lease_id())));
}

TEST_F(WatchTest, EventsOfOthersAreNotTold) {
  RawClient other(daemon_.runtime_dir());
  other.Connect();
  WatchStream watch(client_, client_.session_id());
  ASSERT_TRUE(watch.Next(v1::Event::TYPE_READY));
  const auto held = other.MustAllocate(DeviceSpec(kGiB));
  ASSERT_TRUE(Worked(other.Allocate({DeviceSpec(1)}, 50)));
  // The other's wait expires before this one's.
  ASSERT_TRUE(Worked(client_.Allocate({DeviceSpec(1)}, 200)));
  const auto event = watch.Next();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->type(), v1::Event::TYPE_EXPIRED);
  const auto listed = client_.GetLease(event->lease_id());
  EXPECT_FALSE(listed.ok());
}

TEST_F(WatchTest, TheEndOfTheSessionEndsTheStreamWithAWord) {
  // Seen: a stream outlived the session that it watched until its connection closed.
  DaemonProcess daemon({.config = "session_grace_ms: 50"});
  RawClient client(daemon.runtime_dir());
  client.Connect();
  WatchStream watch(client, client.session_id());
  ASSERT_TRUE(watch.Next(v1::Event::TYPE_READY));
  const auto held = client.MustAllocate(DeviceSpec(1));
  client.HangUp();
  EXPECT_TRUE(
      Refused(watch.End(), grpc::StatusCode::FAILED_PRECONDITION, v1::REASON_SESSION_ENDED));
}

TEST_F(WatchTest, AStopEndsTheStreamWithAWord) {
  WatchStream watch(client_, client_.session_id());
  ASSERT_TRUE(watch.Next(v1::Event::TYPE_READY));
  EXPECT_EQ(daemon_.Stop(), 0);
  EXPECT_TRUE(watch.Next(v1::Event::TYPE_STOPPING));
  EXPECT_TRUE(Refused(watch.End(), grpc::StatusCode::UNAVAILABLE, v1::REASON_STOPPING));
}

TEST_F(WatchTest, AnotherProcessesEventsAreRefused) {
  ClientProcess other(daemon_.runtime_dir());
  ASSERT_EQ(other.Ask("dial"), "ok");
  const std::uint64_t id = std::stoull(other.Ask("hello"));
  WatchStream watch(client_, id);
  EXPECT_TRUE(
      Refused(watch.End(), grpc::StatusCode::FAILED_PRECONDITION, v1::REASON_SESSION_ENDED));
}

}  // namespace
}  // namespace gpulease::e2e
