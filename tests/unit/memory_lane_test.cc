// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "daemon/memory/lane.h"

namespace gpulease::memory {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);

Time Never() { return kNever; }

TEST(LaneTest, JobsAreDoneInTheirOrder) {
  Lane lane("test", 1, Never);
  std::vector<int> done;
  std::promise<void> last;
  for (int i = 0; i < 100; ++i) {
    lane.Post([&, i] {
      done.push_back(i);
      if (i == 99) last.set_value();
    });
  }
  ASSERT_EQ(last.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.size(), 100u);
}

TEST(LaneTest, ALookIsTakenWhenAskedForAndWhenItSaysItself) {
  std::atomic<int> looks = 0;
  std::promise<void> third;
  Lane lane("test", 1, [&] {
    if (++looks == 3) third.set_value();
    return looks < 3 ? BootClock::now() : kNever;
  });
  lane.ObserveAt(BootClock::now());
  ASSERT_EQ(third.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(looks, 3);
}

TEST(LaneTest, TheGateIsForOne) {
  Lane lane("test", 1, Never);
  lane.Enter();
  EXPECT_FALSE(lane.TryEnter(std::chrono::milliseconds(1)));
  lane.Leave();
  EXPECT_TRUE(lane.TryEnter(std::chrono::milliseconds(1)));
  lane.Leave();
}

TEST(LaneTest, GatesAreAllEnteredOrNone) {
  Lane first("first", 1, Never), second("second", 1, Never);
  second.Enter();
  Gates gates;
  EXPECT_FALSE(gates.Enter({&first, &second}, std::chrono::milliseconds(1)));
  EXPECT_TRUE(first.TryEnter(Duration::zero())) << "the first was left again";
  first.Leave();
  second.Leave();
  EXPECT_TRUE(gates.Enter({&first, &second}, std::chrono::milliseconds(1)));
  EXPECT_FALSE(first.TryEnter(Duration::zero()));
}

TEST(LaneTest, AStopGivesUpOnAJobThatDoesNotReturn) {
  auto release = std::make_shared<std::promise<void>>();
  std::promise<void> begun;
  {
    Lane lane("test", 1, Never);
    EXPECT_FALSE(lane.BusySince());
    lane.Post([&begun, released = std::shared_future<void>(release->get_future())] {
      begun.set_value();
      released.wait();
    });
    begun.get_future().wait();
    EXPECT_TRUE(lane.BusySince());
    bool dropped = true;
    lane.Post([&dropped] { dropped = false; });
    EXPECT_FALSE(lane.Stop(std::chrono::milliseconds(5)));
    release->set_value();
    EXPECT_TRUE(lane.Stop(kPatience));
    EXPECT_TRUE(dropped) << "what was not begun is not done";
  }
}

}  // namespace
}  // namespace gpulease::memory
