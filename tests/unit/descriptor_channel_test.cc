// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>

namespace gpulease {
namespace {

struct Pair {
  UniqueFd a, b;
};

Pair MakePair() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::size_t OpenDescriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

const std::array<std::byte, 3> kText = {std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};

TEST(DescriptorChannelTest, CarriesBytesAndDescriptorsOfTheSameFile) {
  Pair pair = MakePair();
  UniqueFd file(memfd_create("test", MFD_CLOEXEC));
  const std::array<int, 1> fds = {file.get()};
  ASSERT_TRUE(SendMessage(pair.a.get(), kText, fds).ok());
  std::array<std::byte, 16> buffer;
  auto received = ReceiveMessage(pair.b.get(), buffer, false);
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(received->size, 3u);
  ASSERT_EQ(received->descriptors.size(), 1u);
  struct stat sent, got;
  fstat(file.get(), &sent);
  fstat(received->descriptors[0].get(), &got);
  EXPECT_EQ(sent.st_ino, got.st_ino);
  EXPECT_EQ(fcntl(received->descriptors[0].get(), F_GETFD), FD_CLOEXEC);
}

TEST(DescriptorChannelTest, SaysThatThePeerIsGone) {
  Pair pair = MakePair();
  pair.b.Reset();
  EXPECT_EQ(SendMessage(pair.a.get(), kText, {}).error().code, Code::kUnavailable);
  std::array<std::byte, 16> buffer;
  EXPECT_EQ(ReceiveMessage(pair.a.get(), buffer, false)->size, 0u);
}

TEST(DescriptorChannelTest, SaysThatNothingIsThere) {
  Pair pair = MakePair();
  std::array<std::byte, 16> buffer;
  EXPECT_EQ(ReceiveMessage(pair.a.get(), buffer, true).error().code, Code::kUnavailable);
}

TEST(DescriptorChannelTest, RefusesAMessageLongerThanTheBuffer) {
  Pair pair = MakePair();
  ASSERT_TRUE(SendMessage(pair.a.get(), kText, {}).ok());
  std::array<std::byte, 2> buffer;
  EXPECT_EQ(ReceiveMessage(pair.b.get(), buffer, false).error().code, Code::kDataLoss);
}

TEST(DescriptorChannelTest, ClosesWhatArrivedWhenTheLimitCutsDescriptorsOff) {
  Pair pair = MakePair();
  const std::array<int, 8> fds = {0, 0, 0, 0, 0, 0, 0, 0};
  ASSERT_TRUE(SendMessage(pair.a.get(), kText, fds).ok());
  const std::size_t before = OpenDescriptors();
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  const int next = dup(0);
  close(next);
  rlimit low = old;
  low.rlim_cur = static_cast<rlim_t>(next) + 3;
  setrlimit(RLIMIT_NOFILE, &low);
  std::array<std::byte, 16> buffer;
  auto received = ReceiveMessage(pair.b.get(), buffer, false);
  setrlimit(RLIMIT_NOFILE, &old);
  ASSERT_FALSE(received.ok());
  EXPECT_EQ(received.error().reason, Reason::kDescriptorLimit);
  EXPECT_THAT(received.error().message, testing::HasSubstr("ulimit -n"));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(DescriptorChannelTest, RefusesMoreDescriptorsThanAMessageHolds) {
  Pair pair = MakePair();
  const std::vector<int> fds(kMaxDescriptorsPerMessage + 1, 0);
  EXPECT_EQ(SendMessage(pair.a.get(), kText, fds).error().code, Code::kInternal);
}

}  // namespace
}  // namespace gpulease
