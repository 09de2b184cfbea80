// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "daemon/broker/event_hub.h"

namespace gpulease::broker {
namespace {

using ledger::SessionId;

struct Watcher {
  std::vector<Event> seen;
  EventHub::Callback callback() {
    return [this](const std::shared_ptr<const Event>& event) { seen.push_back(*event); };
  }
};

Event EventOf(Event::Type type) {
  Event event;
  event.type = type;
  return event;
}

TEST(EventHubTest, EachWatcherHearsReadyFirstAndThenWhatIsForHim) {
  EventHub hub;
  Watcher one, two, all;
  ASSERT_TRUE(hub.Subscribe(1000, SessionId{1}, one.callback()).ok());
  ASSERT_TRUE(hub.Subscribe(1000, SessionId{2}, two.callback()).ok());
  ASSERT_TRUE(hub.Subscribe(0, SessionId{}, all.callback()).ok());
  for (const Watcher* watcher : {&one, &two, &all}) {
    ASSERT_EQ(watcher->seen.size(), 1u);
    EXPECT_EQ(watcher->seen[0].type, Event::Type::kReady);
  }
  hub.Publish(EventOf(Event::Type::kGranted), {SessionId{1}});
  EXPECT_EQ(one.seen.size(), 2u);
  EXPECT_EQ(two.seen.size(), 1u);
  EXPECT_EQ(all.seen.size(), 2u) << "an administrator hears all";
  hub.Publish(EventOf(Event::Type::kStopping), {});
  EXPECT_EQ(one.seen.size(), 3u);
  EXPECT_EQ(two.seen.size(), 2u);
  EXPECT_GT(one.seen[2].sequence, one.seen[1].sequence);
  EXPECT_EQ(one.seen[2].sequence, two.seen[1].sequence);
}

TEST(EventHubTest, WhoHasUnsubscribedHearsNothingMore) {
  EventHub hub;
  Watcher watcher;
  const std::uint64_t subscription = hub.Subscribe(1000, SessionId{1}, watcher.callback()).value();
  hub.Unsubscribe(subscription);
  hub.Publish(EventOf(Event::Type::kStopping), {});
  EXPECT_EQ(watcher.seen.size(), 1u);
}

TEST(EventHubTest, TheEndOfASessionIsToldToItsWatchers) {
  EventHub hub;
  Watcher one, two;
  ASSERT_TRUE(hub.Subscribe(1000, SessionId{1}, one.callback()).ok());
  ASSERT_TRUE(hub.Subscribe(1000, SessionId{2}, two.callback()).ok());
  hub.End(SessionId{1});
  ASSERT_EQ(one.seen.size(), 2u);
  EXPECT_EQ(one.seen[1].type, Event::Type::kSessionEnded);
  EXPECT_EQ(two.seen.size(), 1u);
}

TEST(EventHubTest, OneUsersWatchersAreLimitedAndAnothersAreNot) {
  EventHub hub;
  Watcher watcher;
  std::uint64_t last = 0;
  for (std::uint32_t i = 0; i < EventHub::kMostOfUser; ++i)
    last = hub.Subscribe(1000, SessionId{1}, watcher.callback()).value();
  const auto refused = hub.Subscribe(1000, SessionId{2}, watcher.callback());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_EQ(refused.error().reason, Reason::kSessionLimit);
  EXPECT_NE(refused.error().message.find("1024 calls of Watch"), std::string::npos);
  EXPECT_TRUE(hub.Subscribe(1001, SessionId{2}, watcher.callback()).ok());
  EXPECT_TRUE(hub.Subscribe({1000, "/a.scope"}, SessionId{2}, watcher.callback()).ok());
  hub.Unsubscribe(last);
  EXPECT_TRUE(hub.Subscribe(1000, SessionId{2}, watcher.callback()).ok());
}

}  // namespace
}  // namespace gpulease::broker
