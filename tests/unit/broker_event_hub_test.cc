// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "daemon/broker/event_hub.h"

namespace gpulease::broker {
namespace {

using ledger::SessionId;

struct Watcher {
  std::vector<Event> seen;
  EventHub::Callback callback() {
    return [this](const Event& event) { seen.push_back(event); };
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
  hub.Subscribe(SessionId{1}, one.callback());
  hub.Subscribe(SessionId{2}, two.callback());
  hub.Subscribe(SessionId{}, all.callback());
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
  const std::uint64_t subscription = hub.Subscribe(SessionId{1}, watcher.callback());
  hub.Unsubscribe(subscription);
  hub.Publish(EventOf(Event::Type::kStopping), {});
  EXPECT_EQ(watcher.seen.size(), 1u);
}

}  // namespace
}  // namespace gpulease::broker
