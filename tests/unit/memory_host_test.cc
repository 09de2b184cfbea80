// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "daemon/memory/host_memory.h"
#include "daemon/memory/numa.h"

namespace gpulease::memory {
namespace {

HostRequest RequestOf(Bytes size) {
  HostRequest request;
  request.size = size;
  request.node = NumaNodes().front().number;
  return request;
}

TEST(HostMemoryTest, AChunkIsZeroPresentAndSealed) {
  const Result<HostChunk> chunk = CreateHostChunk(RequestOf(64 * kKiB));
  ASSERT_TRUE(chunk.ok()) << chunk.error().message;
  const Result<UniqueFd> fd = chunk->OpenFor(ledger::Access::kReadWrite);
  ASSERT_TRUE(fd.ok());
  struct stat status {};
  ASSERT_EQ(fstat(fd->get(), &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(64 * kKiB));
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_GE(status.st_blocks * 512, static_cast<off_t>(64 * kKiB)) << "every page is there";
  EXPECT_EQ(fcntl(fd->get(), F_GET_SEALS), F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  EXPECT_TRUE(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC);
  void* const address = mmap(nullptr, 64 * kKiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  ASSERT_NE(address, MAP_FAILED);
  const auto* const bytes = static_cast<const unsigned char*>(address);
  EXPECT_TRUE(std::all_of(bytes, bytes + 64 * kKiB, [](unsigned char c) { return c == 0; }));
  munmap(address, 64 * kKiB);
}

TEST(HostMemoryTest, AReaderCannotMapItForWriting) {
  const Result<HostChunk> chunk = CreateHostChunk(RequestOf(4096));
  ASSERT_TRUE(chunk.ok()) << chunk.error().message;
  const Result<UniqueFd> fd = chunk->OpenFor(ledger::Access::kReadOnly);
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0), MAP_FAILED);
  char byte = 1;
  EXPECT_EQ(write(fd->get(), &byte, 1), -1);
}

TEST(HostMemoryTest, ItIsInUseWhileAnybodyElseHasItOpenOrMapped) {
  const Result<HostChunk> chunk = CreateHostChunk(RequestOf(8192));
  ASSERT_TRUE(chunk.ok()) << chunk.error().message;
  EXPECT_FALSE(chunk->InUse());
  for (const ledger::Access access : {ledger::Access::kReadOnly, ledger::Access::kReadWrite}) {
    Result<UniqueFd> fd = chunk->OpenFor(access);
    ASSERT_TRUE(fd.ok());
    EXPECT_TRUE(chunk->InUse());
    void* const address = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd->get(), 0);
    ASSERT_NE(address, MAP_FAILED);
    fd->Reset();
    EXPECT_TRUE(chunk->InUse()) << "mapped";
    munmap(address, 8192);
    EXPECT_FALSE(chunk->InUse());
  }
}

TEST(HostMemoryTest, ADeathNoticeCountsAndWakesWhateverAHolderDidToThePage) {
  const Result<HostChunk> chunk = CreateHostChunk(RequestOf(4096));
  ASSERT_TRUE(chunk.ok()) << chunk.error().message;
  const Result<UniqueFd> fd = chunk->OpenFor(ledger::Access::kReadWrite);
  ASSERT_TRUE(fd.ok());
  void* const address = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd->get(), 0);
  ASSERT_NE(address, MAP_FAILED);
  auto* const word = reinterpret_cast<std::atomic<std::uint32_t>*>(
      static_cast<std::byte*>(address) + kNoticeOffset);
  std::thread waiter([&] {
    while (word->load() == 0) syscall(SYS_futex, word, FUTEX_WAIT, 0, nullptr, nullptr, 0);
  });
  ASSERT_TRUE(chunk->NoticeDeath().ok());
  waiter.join();
  EXPECT_EQ(word->load(), 1u);
  // The page is given back to the kernel: the word begins anew.
  ASSERT_EQ(fallocate(fd->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  ASSERT_TRUE(chunk->NoticeDeath().ok());
  EXPECT_EQ(word->load(), 1u);
  munmap(address, 4096);
}

TEST(HostMemoryTest, MoreThanThereIsIsRefusedWithTheNumbers) {
  const Result<HostChunk> chunk = CreateHostChunk(RequestOf(Bytes{1} << 50));
  ASSERT_FALSE(chunk.ok());
  EXPECT_EQ(chunk.error().code, Code::kResourceExhausted);
  EXPECT_EQ(chunk.error().reason, Reason::kHostMemoryShort);
  EXPECT_EQ(chunk.error().requested_bytes, Bytes{1} << 50);
  EXPECT_GT(chunk.error().available_bytes, 0u);
}

TEST(HostMemoryTest, WhatIsNotWantedAnyMoreIsGivenUpHalfWay) {
  HostRequest request = RequestOf(64 * kMiB);
  int asked = 0;
  request.wanted = [&asked] { return ++asked < 2; };
  const Result<HostChunk> chunk = CreateHostChunk(request);
  ASSERT_FALSE(chunk.ok());
  EXPECT_EQ(chunk.error().code, Code::kCancelled);
}

TEST(HostMemoryTest, HugePagesNeedAWholeNumberOfThem) {
  HostRequest request = RequestOf(4096);
  request.page_size = ledger::PageSize::kHuge;
  const Result<HostChunk> chunk = CreateHostChunk(request);
  ASSERT_FALSE(chunk.ok());
  EXPECT_EQ(chunk.error().reason, Reason::kBadField);
  EXPECT_EQ(ChoosePageSize(ledger::PageSize::kAuto, 4096, request.node), ledger::PageSize::kSmall);
}

TEST(NumaTest, ThereIsAtLeastOneNodeWithMemory) {
  const std::vector<NumaNode> nodes = NumaNodes();
  ASSERT_FALSE(nodes.empty());
  for (const NumaNode& node : nodes) {
    EXPECT_GT(node.total, 0u);
    EXPECT_LE(AvailableOnNode(node.number), node.total);
  }
}

}  // namespace
}  // namespace gpulease::memory
