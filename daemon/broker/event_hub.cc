// SPDX-License-Identifier: Apache-2.0
#include "daemon/broker/event_hub.h"

#include <algorithm>

namespace gpulease::broker {

std::uint64_t EventHub::Subscribe(ledger::SessionId session, Callback callback) {
  MutexLock lock(mutex_);
  Event ready;
  ready.sequence = next_sequence_++;
  callback(ready);
  const std::uint64_t subscription = next_subscription_++;
  subscriptions_[subscription] = {session, std::move(callback)};
  return subscription;
}

void EventHub::Unsubscribe(std::uint64_t subscription) {
  MutexLock lock(mutex_);
  subscriptions_.erase(subscription);
}

void EventHub::Publish(Event event, const std::vector<ledger::SessionId>& sessions) {
  MutexLock lock(mutex_);
  event.sequence = next_sequence_++;
  for (const auto& [number, subscription] : subscriptions_) {
    if (!subscription.session || sessions.empty() ||
        std::find(sessions.begin(), sessions.end(), subscription.session) != sessions.end()) {
      subscription.callback(event);
    }
  }
}

}  // namespace gpulease::broker
