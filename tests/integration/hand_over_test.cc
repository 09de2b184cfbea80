// SPDX-License-Identifier: Apache-2.0
//
// How descriptors reach a client, and what happens when they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <list>

#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kChunk = 2 * kMiB;

class HandOverTest : public ::testing::Test {
 protected:
  HandOverTest()
      : daemon_({.simulate = "1x64GiB", .config = "largest_chunk: \"2MiB\""}),
        client_(daemon_.runtime_dir()) {
    client_.Connect();
  }
  Reply<v1::AllocateResponse> Offer(RawClient& client, Bytes size) {
    return client.Allocate({DeviceSpec(size)});
  }

  DaemonProcess daemon_;
  RawClient client_;
};

TEST_F(HandOverTest, ALeaseOfManyChunksComesInSeveralPushesInOrder) {
  const auto reply = Offer(client_, 600 * kChunk);
  ASSERT_TRUE(Worked(reply));
  const v1::Lease& lease = reply.message.leases(0);
  ASSERT_EQ(lease.chunks_size(), 600);
  // Before anything is taken, one message's worth is on its way and no more.
  auto first = client_.ReceiveRaw();
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(first->second.size(), 253u);
  EXPECT_FALSE(client_.ReceiveRaw(std::chrono::milliseconds(50)).ok());
  ASSERT_TRUE(client_.Take(client_.last_tag(), lease.lease_id(), 253).ok());
  auto second = client_.ReceiveRaw();
  ASSERT_TRUE(second.ok()) << second.error().message;
  const auto push = handle::Parse<handle::Push>(second->first);
  ASSERT_TRUE(push);
  EXPECT_EQ(push->first, 253u);
  EXPECT_EQ(push->total, 600u);
  EXPECT_EQ(client_.GetLease(lease.lease_id()).message.lease().state(), v1::LEASE_STATE_OFFERED);
  ASSERT_TRUE(client_.Take(client_.last_tag(), lease.lease_id(), 253).ok());
  auto third = client_.ReceiveRaw();
  ASSERT_TRUE(third.ok()) << third.error().message;
  EXPECT_EQ(third->second.size(), 94u);
  ASSERT_TRUE(client_.Take(client_.last_tag(), lease.lease_id(), 94).ok());
  EXPECT_TRUE(Eventually([&] {
    return client_.GetLease(lease.lease_id()).message.lease().state() == v1::LEASE_STATE_LEASED;
  }));
}

TEST_F(HandOverTest, ALeaseThatIsGivenBackIsUndone) {
  const auto reply = Offer(client_, kChunk);
  ASSERT_TRUE(Worked(reply));
  const std::uint64_t id = reply.message.leases(0).lease_id();
  ASSERT_TRUE(client_.ReceiveRaw().ok());
  ASSERT_TRUE(client_.Take(client_.last_tag(), id, 1, /*ok=*/false).ok());
  EXPECT_TRUE(Eventually([&] { return IsAllFree(client_.Node()); }));
}

TEST_F(HandOverTest, ALeaseThatIsGivenBackInTheMiddleLeavesRoomForTheNext) {
  // Two leases share what may be on its way; one is declined when two of its pushes are there.
  const auto small = Offer(client_, 100 * kChunk);
  const std::uint64_t small_tag = client_.last_tag();
  const auto large = Offer(client_, 600 * kChunk);
  const std::uint64_t large_tag = client_.last_tag();
  ASSERT_TRUE(Worked(small));
  ASSERT_TRUE(Worked(large));
  const std::uint64_t small_id = small.message.leases(0).lease_id();
  const std::uint64_t large_id = large.message.leases(0).lease_id();
  ASSERT_TRUE(client_.ReceiveRaw().ok());  // 100 of the first
  ASSERT_TRUE(client_.ReceiveRaw().ok());  // 153 of the second
  ASSERT_TRUE(client_.Take(small_tag, small_id, 100).ok());
  ASSERT_TRUE(client_.ReceiveRaw().ok());  // 100 more of the second
  ASSERT_TRUE(client_.Take(large_tag, large_id, 153, /*ok=*/false).ok());
  EXPECT_TRUE(Eventually([&] { return client_.Node().lease_count() == 1; }));
  // All of the room is there again.
  const auto next = Offer(client_, 253 * kChunk);
  ASSERT_TRUE(Worked(next));
  auto pushed = client_.ReceiveRaw();
  ASSERT_TRUE(pushed.ok()) << pushed.error().message;
  EXPECT_EQ(pushed->second.size(), 253u);
}

TEST_F(HandOverTest, AnOpenThatIsGivenBackUndoesItselfAndNotTheLease) {
  const auto [lease, chunks] = client_.MustAllocate(DeviceSpec(kChunk, "shared"));
  RawClient other(daemon_.runtime_dir());
  other.Connect();
  ASSERT_TRUE(Worked(other.Open("shared")));
  ASSERT_TRUE(other.ReceiveRaw().ok());
  ASSERT_TRUE(other.Take(other.last_tag(), lease.lease_id(), 1, /*ok=*/false).ok());
  EXPECT_TRUE(
      Eventually([&] { return client_.GetLease("shared").message.lease().holders_size() == 1; }));
  EXPECT_EQ(client_.GetLease("shared").message.lease().state(), v1::LEASE_STATE_LEASED);
}

TEST_F(HandOverTest, TakingWhatWasNotSentChangesNothing) {
  const auto reply = Offer(client_, 300 * kChunk);
  ASSERT_TRUE(Worked(reply));
  const std::uint64_t id = reply.message.leases(0).lease_id();
  for (const std::uint32_t count : {0u, 254u, 300u, ~0u}) {
    ASSERT_TRUE(client_.Take(client_.last_tag(), id, count).ok());
  }
  ASSERT_TRUE(client_.Take(client_.last_tag() + 1, id, 1).ok());
  ASSERT_TRUE(client_.Take(client_.last_tag(), id + 1, 1).ok());
  const auto chunks = client_.Chunks(client_.last_tag(), id);
  ASSERT_TRUE(chunks.ok()) << chunks.error().message;
  EXPECT_EQ(chunks->size(), 300u);
}

TEST_F(HandOverTest, AClientThatDoesNotReadHoldsNobodyElseUp) {
  // More descriptors than may be on their way in all would stop every send.
  std::list<RawClient> silent;
  for (int i = 0; i < 20; ++i) {
    RawClient& client = silent.emplace_back(daemon_.runtime_dir());
    client.Connect();
    for (int j = 0; j < 3; ++j) ASSERT_TRUE(Worked(Offer(client, 150 * kChunk)));
  }
  const auto [lease, chunks] = client_.MustAllocate(DeviceSpec(200 * kChunk));
  EXPECT_EQ(chunks.size(), 200u);
}

TEST_F(HandOverTest, AClientThatClaimsToTakeWithoutReadingHoldsNobodyElseUp) {
  if (!CanSwitchUsers()) GTEST_SKIP() << "the kernel spares root: the daemon must be another's";
  // A small limit of open files is a small limit of descriptors on their way.
  DaemonProcess daemon({.simulate = "1x64GiB",
                        .config = "largest_chunk: \"2MiB\"",
                        .uid = 1234,
                        .open_files = 4000});
  RawClient liar(daemon.runtime_dir());
  liar.Connect();
  const auto reply = Offer(liar, 250 * kChunk);
  ASSERT_TRUE(Worked(reply));
  const std::uint64_t id = reply.message.leases(0).lease_id();
  ASSERT_TRUE(liar.Chunks(liar.last_tag(), id).ok());
  for (int i = 0; i < 40; ++i) {
    // Asks for it again and again, and says that it has it, without a look.
    const auto again = liar.Open(id);
    if (!again.ok()) break;
    static_cast<void>(liar.Take(liar.last_tag(), id, 250).ok());
  }
  RawClient honest(daemon.runtime_dir());
  honest.Connect();
  const auto offered = Offer(honest, 10 * kChunk);
  ASSERT_TRUE(Worked(offered));
  const auto chunks = honest.Chunks(honest.last_tag(), offered.message.leases(0).lease_id());
  ASSERT_TRUE(chunks.ok()) << chunks.error().message;
  EXPECT_EQ(chunks->size(), 10u);
}

TEST_F(HandOverTest, AUserWhoseClientsDoNotReadHoldsNoOtherUserUp) {
  if (!CanSwitchUsers()) GTEST_SKIP() << "the kernel spares root: the daemon must be another's";
  DaemonProcess daemon({.simulate = "1x64GiB",
                        .config = "largest_chunk: \"2MiB\"",
                        .uid = 1234,
                        .open_files = 4000});
  RawClient owner(daemon.runtime_dir());
  owner.Connect();
  v1::AllocationSpec spec = DeviceSpec(253 * kChunk, "large");
  spec.set_mode(0666);
  const auto held = owner.MustAllocate(spec);
  // More than the kernel lets be on their way in all, if each had its message; half of them hang up
  // and come again, with the old connection unread.
  std::list<ClientProcess> silent;
  for (int i = 0; i < 10; ++i) {
    ClientProcess& client = silent.emplace_back(daemon.runtime_dir(), ClientOptions{.uid = 1000});
    for (int again = 0; again < 2; ++again) {
      client.Connect();
      ASSERT_NE(ClientProcess::LeaseOf(client.Ask("open 0/large ro untaken")), 0u);
      if (again == 0) {
        ASSERT_EQ(client.Ask("halfclose"), "ok");
      }
    }
  }
  const auto offered = Offer(owner, 10 * kChunk);
  ASSERT_TRUE(Worked(offered));
  const auto chunks = owner.Chunks(owner.last_tag(), offered.message.leases(0).lease_id());
  ASSERT_TRUE(chunks.ok()) << chunks.error().message;
  EXPECT_EQ(chunks->size(), 10u);
  // When they end, their place is free again.
  silent.clear();
  ClientProcess next(daemon.runtime_dir(), {.uid = 1000});
  EXPECT_TRUE(Eventually([&] {
    return next.Ask("dial") == "ok" && !next.Ask("hello").starts_with("error") &&
           ClientProcess::LeaseOf(next.Ask("open 0/large ro")) != 0;
  }));
}

TEST_F(HandOverTest, AClientWithoutRoomForDescriptorsFailsClearlyAndGivesBack) {
  ClientProcess client(daemon_.runtime_dir());
  client.Connect();
  ASSERT_EQ(client.Ask("files 40"), "ok");
  const std::string refused = client.Ask("device 134217728");  // 64 chunks
  EXPECT_THAT(refused, HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(refused, HasSubstr("open files"));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(client_.Node()); }));
  // The next one on the same connection works.
  EXPECT_NE(ClientProcess::LeaseOf(client.Ask("device 4194304")), 0u);
  ASSERT_EQ(client.Ask("files 1000"), "ok");
  EXPECT_NE(ClientProcess::LeaseOf(client.Ask("device 134217728")), 0u);
}

TEST_F(HandOverTest, WhatCannotBeSentIsNotLeased) {
  // Its socket takes nothing any more, which the daemon learns when it sends.
  ASSERT_EQ(shutdown(client_.handle_socket(), SHUT_RD), 0);
  EXPECT_TRUE(Refused(client_.Allocate({DeviceSpec(kChunk), DeviceSpec(kChunk)}),
                      grpc::StatusCode::UNAVAILABLE, v1::REASON_HAND_OVER));
  EXPECT_TRUE(Eventually([&] { return IsAllFree(client_.Node()); }));
}

TEST_F(HandOverTest, WhatCannotBeSentIsKeptForARetryThatNamesIt) {
  const std::uint64_t session = client_.session_id();
  ASSERT_EQ(shutdown(client_.handle_socket(), SHUT_RD), 0);
  EXPECT_TRUE(Refused(client_.Allocate({DeviceSpec(kChunk)}, 0, "again"),
                      grpc::StatusCode::UNAVAILABLE, v1::REASON_HAND_OVER));
  client_.HangUp();
  ASSERT_TRUE(Eventually([&] {
    return client_.Dial().ok() && client_.Hello(session).ok() && client_.session_id() == session;
  }));
  const auto retried = client_.Allocate({DeviceSpec(kChunk)}, 0, "again");
  ASSERT_TRUE(Worked(retried));
  EXPECT_TRUE(client_.Chunks(client_.last_tag(), retried.message.leases(0).lease_id()).ok());
  EXPECT_EQ(client_.Node().lease_count(), 1u);
}

TEST_F(HandOverTest, AReadOnlyOpenSaysSoInItsPush) {
  const auto [lease, chunks] = client_.MustAllocate(DeviceSpec(kChunk, "ro"));
  ASSERT_TRUE(Worked(client_.Open("ro", v1::ACCESS_READ_ONLY)));
  auto message = client_.ReceiveRaw();
  ASSERT_TRUE(message.ok()) << message.error().message;
  const auto push = handle::Parse<handle::Push>(message->first);
  ASSERT_TRUE(push);
  EXPECT_EQ(push->read_only, 1u);
}

}  // namespace
}  // namespace gpulease::e2e
