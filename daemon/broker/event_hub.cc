// SPDX-License-Identifier: Apache-2.0
#include "daemon/broker/event_hub.h"

#include <algorithm>

namespace gpulease::broker {

Result<std::uint64_t> EventHub::Subscribe(const ledger::UserId& user, ledger::SessionId session,
                                          Callback callback) {
  MutexLock lock(mutex_);
  std::uint32_t& count = of_user_[user];
  if (count >= kMostOfUser) {
    return MakeError(Code::kResourceExhausted, Reason::kSessionLimit,
                     "uid " + std::to_string(user.uid) + " has " + std::to_string(count) +
                         " calls of Watch open, the most for a user: end some");
  }
  ++count;
  Event ready;
  ready.sequence = next_sequence_++;
  callback(std::make_shared<const Event>(std::move(ready)));
  const std::uint64_t subscription = next_subscription_++;
  subscriptions_.emplace(subscription, Subscription{user, session, std::move(callback)});
  return subscription;
}

void EventHub::Unsubscribe(std::uint64_t subscription) {
  MutexLock lock(mutex_);
  const auto found = subscriptions_.find(subscription);
  if (found == subscriptions_.end()) return;
  if (const auto user = of_user_.find(found->second.user); --user->second == 0)
    of_user_.erase(user);
  subscriptions_.erase(found);
}

void EventHub::End(ledger::SessionId session) {
  MutexLock lock(mutex_);
  Event event;
  event.type = Event::Type::kSessionEnded;
  event.sequence = next_sequence_++;
  const auto shared = std::make_shared<const Event>(std::move(event));
  for (const auto& [number, subscription] : subscriptions_) {
    if (subscription.session == session) subscription.callback(shared);
  }
}

void EventHub::Publish(Event event, const std::vector<ledger::SessionId>& sessions) {
  MutexLock lock(mutex_);
  event.sequence = next_sequence_++;
  const auto shared = std::make_shared<const Event>(std::move(event));
  for (const auto& [number, subscription] : subscriptions_) {
    if (!subscription.session || sessions.empty() ||
        std::find(sessions.begin(), sessions.end(), subscription.session) != sessions.end()) {
      subscription.callback(shared);
    }
  }
}

}  // namespace gpulease::broker
