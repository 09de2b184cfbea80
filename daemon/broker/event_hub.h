// SPDX-License-Identifier: Apache-2.0
//
// EventHub: hands events to those who watch. It never waits for a watcher: each has a callback that
// only queues.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "daemon/ledger/ledger.h"

namespace gpulease::broker {

// One thing that happened. `type` of the ledger's, or kStopping.
struct Event {
  enum class Type {
    kGranted,
    kReleased,
    kOwnerGone,
    kRevoked,
    kExpired,
    kGpuState,
    kStopping,
    kLostEvents,
    kReady,
    kDeviceLost,
    kSealed,
    kResized,
    kSuspending,
    kResumed,
    kSessionEnded  // the last of its watchers' events
  };
  Type type = Type::kReady;
  std::uint64_t sequence = 0;
  std::uint64_t lease_id = 0;
  std::string name;
  std::string gpu_uuid;
  std::string message;
};

// Threads: any. Callbacks run under the hub's lock: they queue and return.
class EventHub {
 public:
  // Watchers that queue an event share it: a crowd of them that does not read costs a pointer each.
  using Callback = std::function<void(const std::shared_ptr<const Event>&)>;
  static constexpr std::uint32_t kMostOfUser = 1024;

  // Events of `session`, or (none) of all. Ends with Unsubscribe.
  // Errors: kResourceExhausted/kSessionLimit   `user` has kMostOfUser subscriptions.
  Result<std::uint64_t> Subscribe(const ledger::UserId& user, ledger::SessionId session,
                                  Callback callback);
  void Unsubscribe(std::uint64_t subscription);
  // Tells the watchers of a session that is over.
  void End(ledger::SessionId session);
  // To the watchers of `sessions` (empty: of every session) and to those of all.
  void Publish(Event event, const std::vector<ledger::SessionId>& sessions);

 private:
  struct Subscription {
    ledger::UserId user;
    ledger::SessionId session;
    Callback callback;
  };
  Mutex mutex_;
  std::uint64_t next_sequence_ GPULEASE_GUARDED_BY(mutex_) = 1;
  std::uint64_t next_subscription_ GPULEASE_GUARDED_BY(mutex_) = 1;
  std::map<std::uint64_t, Subscription> subscriptions_ GPULEASE_GUARDED_BY(mutex_);
  std::map<ledger::UserId, std::uint32_t> of_user_ GPULEASE_GUARDED_BY(mutex_);
};

}  // namespace gpulease::broker
