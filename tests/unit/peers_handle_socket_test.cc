// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

#include "base/descriptor_channel.h"
#include "daemon/peers/handle_socket.h"

namespace gpulease::peers {
namespace {

class HandleSocketTest : public ::testing::Test {
 protected:
  HandleSocketTest() : null_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    socket_ = std::make_unique<HandleSocket>(UniqueFd(ends[0]), user_);
    peer_.Reset(ends[1]);
  }
  // `count` chunks of lease `id`, all of them the same file.
  Parcel ParcelOf(std::uint64_t id, std::size_t count) {
    Parcel parcel;
    parcel.tag = 1;
    parcel.lease_id = id;
    parcel.descriptors.assign(count, null_.get());
    parcel.owner = owner_;
    return parcel;
  }
  // The next Push that is there, or nothing.
  std::optional<handle::Push> Read() {
    std::array<std::byte, handle::kMaxMessageBytes> buffer;
    Result<ReceivedMessage> message = ReceiveMessage(peer_.get(), buffer, true);
    if (!message.ok() || message->size == 0) return std::nullopt;
    const auto push = handle::Parse<handle::Push>(std::span(buffer).first(message->size));
    EXPECT_TRUE(push && push->count == message->descriptors.size());
    return push;
  }
  HandleSocket::Answer Take(std::uint64_t id, std::uint32_t count, bool ok = true) {
    handle::Taken taken;
    taken.tag = 1;
    taken.lease_id = id;
    taken.count = count;
    taken.ok = ok ? 1 : 0;
    return socket_->Acknowledge(taken);
  }

  UniqueFd null_;
  std::shared_ptr<int> owner_ = std::make_shared<int>(0);
  std::shared_ptr<UserAllowance> user_ =
      std::make_shared<UserAllowance>(std::make_shared<Allowance>(4000));
  std::unique_ptr<HandleSocket> socket_;
  UniqueFd peer_;
};

TEST_F(HandleSocketTest, ASmallParcelIsSentAtOnceAndItsOwnerLetGo) {
  ASSERT_TRUE(socket_->Push(ParcelOf(7, 3)).ok());
  EXPECT_TRUE(socket_->idle());
  EXPECT_EQ(owner_.use_count(), 1);
  const auto push = Read();
  ASSERT_TRUE(push);
  EXPECT_EQ(push->lease_id, 7u);
  EXPECT_EQ(push->total, 3u);
  EXPECT_EQ(Take(7, 3), HandleSocket::Answer::kComplete);
}

TEST_F(HandleSocketTest, ALargeParcelKeepsItsOwnerUntilAllIsSent) {
  ASSERT_TRUE(socket_->Push(ParcelOf(7, 300)).ok());
  EXPECT_FALSE(socket_->idle());
  EXPECT_EQ(owner_.use_count(), 2);
  EXPECT_EQ(Read()->count, 253u);
  EXPECT_FALSE(Read());
  EXPECT_EQ(Take(7, 253), HandleSocket::Answer::kMore);
  EXPECT_TRUE(socket_->idle());
  EXPECT_EQ(owner_.use_count(), 1);
  EXPECT_EQ(Read()->first, 253u);
  EXPECT_EQ(Take(7, 47), HandleSocket::Answer::kComplete);
}

TEST_F(HandleSocketTest, AnAnswerToWhatWasNotReadMakesNoRoom) {
  ASSERT_TRUE(socket_->Push(ParcelOf(7, 253)).ok());
  EXPECT_EQ(Take(7, 253), HandleSocket::Answer::kComplete);
  ASSERT_TRUE(socket_->Push(ParcelOf(8, 1)).ok());
  EXPECT_FALSE(socket_->idle()) << "253 are still on their way";
  EXPECT_TRUE(Read());
  EXPECT_FALSE(socket_->Flush());
  EXPECT_EQ(Read()->lease_id, 8u);
}

TEST_F(HandleSocketTest, ADeclinedParcelGivesAllOfItsRoomBack) {
  ASSERT_TRUE(socket_->Push(ParcelOf(1, 100)).ok());
  ASSERT_TRUE(socket_->Push(ParcelOf(2, 600)).ok());
  EXPECT_EQ(Read()->count, 100u);
  EXPECT_EQ(Read()->count, 153u);
  EXPECT_EQ(Take(1, 100), HandleSocket::Answer::kComplete);
  EXPECT_EQ(Read()->count, 100u);
  EXPECT_EQ(Take(2, 153, false), HandleSocket::Answer::kDeclined);
  EXPECT_TRUE(socket_->idle()) << "the rest is not sent";
  EXPECT_EQ(Take(2, 100), HandleSocket::Answer::kUnknown);
  ASSERT_TRUE(socket_->Push(ParcelOf(3, 253)).ok());
  EXPECT_EQ(Read()->count, 253u);
}

TEST_F(HandleSocketTest, AnswersToWhatAFormerLifePushedCount) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  socket_ = std::make_unique<HandleSocket>(UniqueFd(ends[0]), user_, /*begun=*/true);
  peer_.Reset(ends[1]);
  EXPECT_EQ(Take(7, 2), HandleSocket::Answer::kComplete);
  EXPECT_EQ(Take(8, 2, false), HandleSocket::Answer::kDeclined);
  ASSERT_TRUE(socket_->Push(ParcelOf(9, 2)).ok());
  EXPECT_EQ(Take(9, 1), HandleSocket::Answer::kMore) << "what this life pushes is counted";
  EXPECT_EQ(Take(9, 1), HandleSocket::Answer::kComplete);
}

TEST_F(HandleSocketTest, AnswersThatFitNothingAreUnknown) {
  EXPECT_EQ(Take(7, 1), HandleSocket::Answer::kUnknown);
  ASSERT_TRUE(socket_->Push(ParcelOf(7, 2)).ok());
  EXPECT_EQ(Take(7, 0), HandleSocket::Answer::kUnknown);
  EXPECT_EQ(Take(7, 3), HandleSocket::Answer::kUnknown);
  EXPECT_EQ(Take(8, 2), HandleSocket::Answer::kUnknown);
  EXPECT_EQ(Take(7, 2), HandleSocket::Answer::kComplete);
  EXPECT_EQ(Take(7, 2), HandleSocket::Answer::kUnknown);
}

TEST_F(HandleSocketTest, AnAnswerToMoreThanWasSentSoFarIsUnknown) {
  ASSERT_TRUE(socket_->Push(ParcelOf(7, 300)).ok());
  EXPECT_EQ(Take(7, 254), HandleSocket::Answer::kUnknown);
  EXPECT_EQ(Take(7, 300), HandleSocket::Answer::kUnknown);
}

TEST_F(HandleSocketTest, ATagThatIsUsedAgainStartsAnew) {
  ASSERT_TRUE(socket_->Push(ParcelOf(7, 300)).ok());
  ASSERT_TRUE(Read());
  ASSERT_TRUE(socket_->Push(ParcelOf(7, 2)).ok());
  const auto push = Read();
  ASSERT_TRUE(push);
  EXPECT_EQ(push->total, 2u);
  EXPECT_EQ(Take(7, 2), HandleSocket::Answer::kComplete);
  EXPECT_EQ(owner_.use_count(), 1);
}

TEST_F(HandleSocketTest, APeerThatIsGoneTakesNothing) {
  peer_.Reset();
  const Status pushed = socket_->Push(ParcelOf(7, 1));
  ASSERT_FALSE(pushed.ok());
  EXPECT_EQ(pushed.error().code, Code::kUnavailable);
  EXPECT_EQ(pushed.error().reason, Reason::kHandOver);
  EXPECT_EQ(owner_.use_count(), 1);
  EXPECT_FALSE(socket_->Flush());
}

TEST_F(HandleSocketTest, AFullSocketKeepsTheRestForLater) {
  const int least = 1;  // the kernel rounds it up to a few messages
  ASSERT_EQ(setsockopt(socket_->descriptor(), SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
  for (std::uint64_t id = 1; id <= 100; ++id) ASSERT_TRUE(socket_->Push(ParcelOf(id, 1)).ok());
  EXPECT_FALSE(socket_->idle());
  std::uint64_t read = 0;
  for (int round = 0; round < 1000 && read < 100; ++round) {
    while (const auto push = Read()) {
      ++read;
      EXPECT_EQ(push->lease_id, read);
    }
    static_cast<void>(socket_->Flush());
  }
  EXPECT_EQ(read, 100u);
  EXPECT_TRUE(socket_->idle());
}

TEST_F(HandleSocketTest, AllConnectionsOfAUserShareWhatHeMayHaveOnTheWay) {
  user_->Add(592);  // of others of his: of the 2,408 left, a quarter is 602
  ASSERT_TRUE(socket_->Push(ParcelOf(7, 20)).ok());
  EXPECT_FALSE(socket_->idle());
  EXPECT_EQ(Read()->count, 10u);
  EXPECT_EQ(Take(7, 10), HandleSocket::Answer::kMore);
  EXPECT_EQ(Read()->count, 10u);
  EXPECT_EQ(Take(7, 10), HandleSocket::Answer::kComplete);
  EXPECT_EQ(user_->unread, 592u);
}

TEST_F(HandleSocketTest, WhoReadsGoesOnThoughOthersOfHisUserDoNot) {
  user_->Add(900);
  ASSERT_TRUE(socket_->Push(ParcelOf(7, 20)).ok());
  for (const std::uint32_t count : {8u, 8u, 4u}) {
    const auto push = Read();
    ASSERT_TRUE(push);
    EXPECT_EQ(push->count, count);
    EXPECT_FALSE(Read());
    EXPECT_NE(Take(7, count), HandleSocket::Answer::kUnknown);
  }
}

TEST(AllowanceTest, HoweverManyUsersDoNotReadTheNextGetsHisShare) {
  // Seen: four users who did not read had all that the kernel allows, and nobody got a descriptor.
  const auto all = std::make_shared<Allowance>(20'000);
  std::vector<std::shared_ptr<UserAllowance>> users;
  for (std::uint32_t n = 1; n <= 6; ++n) {
    UserAllowance next(all);
    EXPECT_GE(next.Room(0), 100u) << n;
    auto greedy = std::make_shared<UserAllowance>(all);
    // One connection that takes what it can, and many that take the least.
    greedy->Add(greedy->Room(0));
    for (int connection = 0; connection < 500; ++connection) greedy->Add(greedy->Room(0));
    users.push_back(std::move(greedy));
    ASSERT_LE(all->unread, all->most);
  }
  EXPECT_GE(UserAllowance(all).Room(0), kLeastOnTheWay);
}

TEST_F(HandleSocketTest, WhatIsUnreadCountsUntilItIsReadOrThePeerIsGone) {
  ASSERT_TRUE(socket_->Push(ParcelOf(7, 20)).ok());
  socket_->Shutdown();
  EXPECT_TRUE(socket_->HasUnread());
  EXPECT_EQ(user_->unread, 20u);
  peer_.Reset();
  EXPECT_FALSE(socket_->HasUnread());
  EXPECT_EQ(user_->unread, 0u);
}

TEST_F(HandleSocketTest, ShutdownDropsWhatWaits) {
  ASSERT_TRUE(socket_->Push(ParcelOf(7, 300)).ok());
  socket_->Shutdown();
  EXPECT_EQ(owner_.use_count(), 1);
  EXPECT_FALSE(socket_->Push(ParcelOf(8, 1)).ok());
}

}  // namespace
}  // namespace gpulease::peers
