// SPDX-License-Identifier: Apache-2.0
//
// The pages that order processes, without any daemon: what they do, and what they make of memory
// that somebody else has written to.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "client/sdk/src/order/barrier_page.h"
#include "client/sdk/src/order/publication_page.h"

namespace gpulease {
namespace {

using std::chrono::milliseconds;
using Break = BarrierPage::Break;
using Clock = BarrierPage::Clock;

struct alignas(4096) Page {
  std::array<std::byte, kOrderPageBytes> bytes{};
  std::byte* data() { return bytes.data(); }
  // As the daemon does.
  void NoticeDeath() {
    std::uint32_t* const word = reinterpret_cast<std::uint32_t*>(data() + 4092);
    std::atomic_ref<std::uint32_t>(*word).fetch_add(1);
    Bell(data()).Ring();  // wakes
  }
};

const auto kNoLook = [] { return std::optional<Break>(); };

bool Wait(BarrierPage& page, unsigned slot, milliseconds most = std::chrono::seconds(60)) {
  bool last = false;
  return page.Wait(slot, Clock::now() + most, last, kNoLook);
}

TEST(BarrierPageTest, GivesASlotToAsManyAsItIsForAndKnowsThem) {
  Page memory;
  BarrierPage page(memory.data());
  EXPECT_EQ(page.form(), BarrierPage::Form::kEmpty);
  page.Lay(2);
  EXPECT_EQ(page.form(), BarrierPage::Form::kBarrier);
  EXPECT_EQ(page.Join({17, 4211}), 0u);
  EXPECT_EQ(page.Join({18, 4212}), 1u);
  EXPECT_EQ(page.Join({19, 4213}), std::nullopt);
  EXPECT_EQ(page.Of(1).session, 18u);
  EXPECT_EQ(page.Of(1).pid, 4212u);
  EXPECT_EQ(page.Of(9999).session, 0u);
}

TEST(BarrierPageTest, OneOfEachRoundIsTheLast) {
  constexpr unsigned kThreads = 3;
  constexpr int kRounds = 3000;
  Page memory;
  BarrierPage(memory.data()).Lay(kThreads);
  std::atomic<int> lasts = 0;
  std::vector<std::thread> threads;
  for (unsigned slot = 0; slot < kThreads; ++slot) {
    threads.emplace_back([&, slot] {
      BarrierPage page(memory.data());
      for (int round = 0; round < kRounds; ++round) {
        bool last = false;
        ASSERT_TRUE(page.Wait(slot, Clock::now() + std::chrono::seconds(60), last, kNoLook));
        lasts += last ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lasts, kRounds);
}

TEST(BarrierPageTest, WhateverBreaksItWakesWhoWaitsAndStays) {
  const std::vector<std::pair<Break, std::function<void(Page&)>>> ways = {
      {Break::kDied, [](Page& memory) { memory.NoticeDeath(); }},
      {Break::kLeft, [](Page& memory) { BarrierPage(memory.data()).BreakUp(Break::kLeft, 1); }},
      {Break::kTimedOut,
       [](Page& memory) {
         BarrierPage page(memory.data());
         EXPECT_FALSE(Wait(page, 1, milliseconds(1)));
       }},
  };
  for (const auto& [why, way] : ways) {
    Page memory;
    BarrierPage page(memory.data());
    page.Lay(3);
    std::thread waiter([&] {
      BarrierPage mine(memory.data());
      EXPECT_FALSE(Wait(mine, 0));
    });
    while (page.arrived() == 0) std::this_thread::yield();
    way(memory);
    waiter.join();
    EXPECT_EQ(page.broken().why, why);
    if (why != Break::kDied) EXPECT_EQ(page.broken().slot, 1u);
    page.BreakUp(Break::kNonsense, 2);
    EXPECT_EQ(page.broken().why, why) << "the first reason stands";
    EXPECT_FALSE(Wait(page, 2));
  }
}

TEST(BarrierPageTest, WhatItIsToldWhenItLooksBreaksIt) {
  Page memory;
  BarrierPage page(memory.data());
  page.Lay(2);
  bool last = false;
  EXPECT_FALSE(page.Wait(0, Clock::time_point::max(), last, [] { return Break::kLost; }));
  EXPECT_EQ(page.broken().why, Break::kLost);
}

// Nothing that somebody writes makes a participant wait for longer than its time, or look past the
// page.
TEST(BarrierPageTest, AnyBytesAreBorneAndEndInTime) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    Page memory;
    BarrierPage page(memory.data());
    page.Lay(1 + random() % 4);
    static_cast<void>(page.Join({1, 1}));
    for (int writes = 0; writes < 6; ++writes) {
      const std::uint32_t value = random() % 3 == 0 ? random() % 5 : random();
      std::memcpy(memory.data() + 4 * (random() % 2 == 0 ? random() % 256 : random() % 1024),
                  &value, sizeof value);
    }
    if (page.form() == BarrierPage::Form::kBarrier) {
      static_cast<void>(page.participants());
      static_cast<void>(page.Join({2, 2}));
      Wait(page, 0, milliseconds(1));
    }
    const BarrierPage::Broken broken = page.broken();
    static_cast<void>(page.Of(broken.slot));
    static_cast<void>(page.joined());
  }
}

TEST(PublicationPageTest, CountsAndNamesTheEvent) {
  Page memory;
  PublicationPage page(memory.data());
  EXPECT_FALSE(page.valid());
  page.Lay();
  EXPECT_TRUE(page.valid());
  EXPECT_FALSE(page.event().handle.has_value());
  EXPECT_FALSE(page.event().torn);
  page.SetPublisher({17, 4211});
  page.SetEvent(EventHandle{1, 2, 3, 4, 5, 6, 7, 8}, 17);
  EXPECT_EQ(page.Announce(), 1u);
  EXPECT_EQ(page.Announce(), 2u);
  EXPECT_EQ(page.sequence(), 2u);
  EXPECT_EQ(page.publisher().session, 17u);
  EXPECT_EQ(page.event().handle, (EventHandle{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(page.event().session, 17u);
  EXPECT_EQ(Bell::Deaths(page.bell().Read()), 0u) << "a ring is no death";
  page.SetEvent(std::nullopt, PublicationPage::kNobody);
  EXPECT_FALSE(page.event().handle.has_value());
}

TEST(PublicationPageTest, AnEventThatIsHalfWrittenIsNone) {
  Page memory;
  PublicationPage page(memory.data());
  page.Lay();
  const EventHandle handle{1, 2, 3, 4, 5, 6, 7, 8};
  page.SetEvent(handle, 17);
  const Page whole = memory;
  int torn = 0;
  for (std::size_t word = 0; word < kOrderPageBytes / 8; ++word) {
    memory = whole;
    std::uint64_t value = 0;
    std::memcpy(&value, memory.data() + 8 * word, 8);
    value ^= 1;
    std::memcpy(memory.data() + 8 * word, &value, 8);
    const PublicationPage::Event event = page.event();
    torn += event.torn ? 1 : 0;
    EXPECT_TRUE(event.torn || event.handle == handle) << word;
  }
  EXPECT_GE(torn, 10) << "its eight words, whose it is, and the digest";
  // The next publisher's is whole again.
  page.SetEvent(handle, 18);
  EXPECT_FALSE(page.event().torn);
  EXPECT_EQ(page.event().session, 18u);
}

}  // namespace
}  // namespace gpulease
