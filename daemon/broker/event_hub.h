// SPDX-License-Identifier: Apache-2.0
//
// EventHub: hands events to those who watch. It never waits for a watcher: each has a callback that
// only queues.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
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
    kReady
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
  using Callback = std::function<void(const Event&)>;

  // Events of `session`, or (none) of all. Ends with Unsubscribe.
  std::uint64_t Subscribe(ledger::SessionId session, Callback callback);
  void Unsubscribe(std::uint64_t subscription);
  // To the watchers of `sessions` (empty: of every session) and to those of all.
  void Publish(Event event, const std::vector<ledger::SessionId>& sessions);

 private:
  struct Subscription {
    ledger::SessionId session;
    Callback callback;
  };
  Mutex mutex_;
  std::uint64_t next_sequence_ GPULEASE_GUARDED_BY(mutex_) = 1;
  std::uint64_t next_subscription_ GPULEASE_GUARDED_BY(mutex_) = 1;
  std::map<std::uint64_t, Subscription> subscriptions_ GPULEASE_GUARDED_BY(mutex_);
};

}  // namespace gpulease::broker
