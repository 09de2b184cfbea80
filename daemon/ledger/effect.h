// SPDX-License-Identifier: Apache-2.0
//
// Effect: what is to be done outside the ledger, after a command, in this order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/ledger/ids.h"

namespace gpulease::ledger {

enum class EventType : std::uint8_t {
  kGranted,
  kReleased,
  kOwnerGone,
  kRevoked,
  kExpired,
  kPoolState,
  kDeviceLost,
  kSealed,
  kResized,     // to sessions that have it open: it has other chunks, or is about to have fewer
  kSuspending,  // to those beside its owner: let go of all of it
  kResumed      // to those beside its owner: it is resident
};

struct Effect {
  enum class Kind : std::uint8_t {
    kMake,     // make the chunks of every lease of `group`, then Made() or MakeFailed()
    kReady,    // chunks of `group` are made and its owner may wait for it: push them; of a
               // growth, which is gone: those of `lease` from `chunk` on
    kFailed,   // a queued or making group is over: answer its waiters with `error`
    kDestroy,  // close the chunks of `lease`, then Destroyed()
    kObserve,  // the driver's view of `pool` matters soon: something is releasing, or the driver
               // was short of memory
    kForget,   // `session` is over: close its connection
    kLoaded,   // `lease` was loading: it is sealed, or over
    kMerge,    // the chunks of `other` belong to the end of `lease` from here on
    kCut,      // the chunks of `lease` from `chunk` on belong to `other` from here on
    kEvent,    // tell `sessions` (and administrators who watch) `event`
    // A session ended that held `lease`, which was made with death_notice: tell those who watch the
    // memory. It may come twice for one session, in two lives of the daemon.
    kDeathNotice
  };
  Kind kind;
  GroupId group;
  LeaseId lease;
  LeaseId other;
  std::uint32_t chunk = 0;
  PoolIndex pool = kNoPool;
  SessionId session;
  std::optional<Error> error;  // of kFailed, and of kDeviceLost events
  EventType event{};
  std::string name;                 // of the lease, for events
  std::vector<SessionId> sessions;  // for events
  std::vector<LeaseId> leases;      // of kFailed: those of the group
  std::string message;              // for kPoolState and kDeviceLost
};
using Effects = std::vector<Effect>;

}  // namespace gpulease::ledger
