// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <thread>

#include "daemon/startup/watchdog.h"

namespace gpulease::startup {
namespace {

constexpr Duration kInterval = std::chrono::milliseconds(20);

void RunFor(peers::EventLoop& loop, Duration duration) {
  const peers::EventLoop::Source end = loop.MakeTimer([&] { loop.Exit(); });
  peers::EventLoop::SetTimer(end, After(BootClock::now(), duration));
  loop.Run();
}

TEST(WatchdogTest, IsFedWhileQuestionsAreAnswered) {
  peers::EventLoop loop;
  int fed = 0;
  // From another thread, as the threads that serve calls do.
  const Watchdog watchdog(
      loop, kInterval, [](const std::function<void()>& answered) { std::thread(answered).join(); },
      [&] {
        if (++fed == 3) loop.Exit();
      });
  loop.Run();
  EXPECT_EQ(fed, 3);
}

TEST(WatchdogTest, StarvesWhileAQuestionIsNotAnswered) {
  peers::EventLoop loop;
  int asked = 0, fed = 0;
  std::function<void()> late;
  const Watchdog watchdog(
      loop, kInterval,
      [&](std::function<void()> answered) {
        if (++asked == 1) {
          late = std::move(answered);
        } else {
          answered();
        }
      },
      [&] {
        if (++fed == 2) loop.Exit();
      });
  const peers::EventLoop::Source answer = loop.MakeTimer([&] {
    EXPECT_EQ(asked, 1) << "one question at a time";
    EXPECT_EQ(fed, 0);
    late();
  });
  peers::EventLoop::SetTimer(answer, After(BootClock::now(), 5 * kInterval));
  loop.Run();
  EXPECT_EQ(fed, 2) << "and is fed again when it is";
}

TEST(WatchdogTest, AnAnswerThatComesAfterItIsGoneFeedsNothing) {
  peers::EventLoop loop;
  int fed = 0;
  std::function<void()> late;
  {
    const Watchdog watchdog(
        loop, kInterval, [&](std::function<void()> answered) { late = std::move(answered); },
        [&] { ++fed; });
  }
  late();
  RunFor(loop, kInterval);
  EXPECT_EQ(fed, 0);
}

}  // namespace
}  // namespace gpulease::startup
