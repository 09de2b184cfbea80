// SPDX-License-Identifier: Apache-2.0
//
// A ledger with a clock that stands still and an executor that does what the test says.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "daemon/ledger/ledger.h"
#include "tests/unit/ledger_pools.h"

namespace gpulease::ledger {

// Pool 0 is a GPU of 100 GiB, pool 1 a node of 50 GiB.
inline Options OneGpu() {
  Options options;
  options.pools = {Gpu("GPU-0", 100 * kGiB), Node("numa0", 50 * kGiB)};
  return options;
}

// Pools 0 and 1 are GPUs of 10 GiB.
inline Options TwoGpus() {
  Options options;
  options.pools = {Gpu("GPU-0", 10 * kGiB), Gpu("GPU-1", 10 * kGiB)};
  return options;
}

inline AllocationSpec Spec(Bytes size, std::vector<PoolIndex> pools = {}) {
  AllocationSpec spec;
  spec.size = size;
  spec.pools = std::move(pools);
  return spec;
}

inline AllocationSpec HostSpec(Bytes size) {
  AllocationSpec spec = Spec(size);
  spec.kind = PoolKind::kHost;
  return spec;
}

inline AllocationSpec Named(Bytes size, std::string name, std::uint32_t mode = 0600) {
  AllocationSpec spec = Spec(size);
  spec.name = std::move(name);
  spec.mode = mode;
  return spec;
}

struct World {
  explicit World(Options options = OneGpu()) : ledger(std::move(options)) {}
  ~World() { EXPECT_EQ(ledger.CheckInvariants(), ""); }

  // Of group 0, in the tenant "t<uid>" unless said otherwise.
  SessionSpec Client(std::uint32_t uid, Bytes device_limit = 0, Bytes host_limit = 0) {
    SessionSpec spec;
    spec.user.uid = uid;
    spec.user.administrator = uid == 0;
    spec.pid = static_cast<std::int32_t>(uid + 1);
    spec.process = ++processes;
    spec.tenant = {"t" + std::to_string(uid), device_limit, host_limit};
    return spec;
  }
  SessionId Open(const SessionSpec& spec) { return ledger.OpenSession(spec, now, log).value(); }
  SessionId Open(std::uint32_t uid = 1000) { return Open(Client(uid)); }

  Result<Allocated> Ask(SessionId session, std::vector<AllocationSpec> specs, Duration wait = {},
                        std::string request_id = "") {
    return ledger.Allocate({session, std::move(specs), wait, std::move(request_id)}, now, log);
  }
  Result<Allocated> Ask(SessionId session, Bytes size, Duration wait = {}) {
    return Ask(session, {Spec(size)}, wait);
  }
  // Granted and made; not taken.
  LeaseId Offer(SessionId session, AllocationSpec spec) {
    const Allocated answer = Ask(session, {std::move(spec)}).value();
    EXPECT_TRUE(Make(answer.group));
    return answer.leases[0];
  }
  LeaseId Lend(SessionId session, AllocationSpec spec) {
    const LeaseId lease = Offer(session, std::move(spec));
    ledger.Take(session, lease, now, log);
    return lease;
  }
  LeaseId Lend(SessionId session, Bytes size) { return Lend(session, Spec(size)); }
  LeaseId Queue(SessionId session, Bytes size, Duration wait = std::chrono::hours(1)) {
    const Allocated answer = Ask(session, size, wait).value();
    EXPECT_EQ(answer.state, State::kQueued);
    return answer.leases[0];
  }
  bool Make(GroupId group) { return ledger.Made(group, PageSize::kSmall, now, log); }
  void Fail(GroupId group, Reason reason, std::string message = "cuMemCreate: out of memory") {
    ledger.MakeFailed(group, MakeError(Code::kResourceExhausted, reason, std::move(message)), now,
                      log);
  }
  Result<Opened> OpenLease(SessionId session, LeaseId lease, Access access = Access::kReadWrite) {
    return ledger.Open(session, lease, access, now, log);
  }
  // Opened and taken.
  void Hold(SessionId session, LeaseId lease, Access access = Access::kReadWrite) {
    EXPECT_TRUE(OpenLease(session, lease, access).ok());
    ledger.Take(session, lease, now, log);
  }
  Status Close(SessionId session, LeaseId lease) { return ledger.Close(session, lease, now, log); }
  Result<Released> Release(SessionId session, LeaseId lease, bool force = false) {
    return ledger.Release(session, ledger.FindSession(session)->spec.user, lease, force, now, log);
  }
  Result<Released> Revoke(LeaseId lease, bool force = false) {
    UserSpec root;
    root.administrator = true;
    return ledger.Release({}, root, lease, force, now, log);
  }
  void End(SessionId session, bool process_lives = false) {
    ledger.EndSession(session, process_lives, now, log);
  }
  void Destroyed(LeaseId lease) { ledger.Destroyed(lease, now, log); }
  // Released, destroyed, and shown as free.
  void Return(SessionId session, LeaseId lease) {
    const PoolIndex pool = ledger.FindLease(lease)->pool;
    EXPECT_TRUE(Release(session, lease).ok());
    Destroyed(lease);
    Observe(pool, Live(pool));
  }
  void Observe(PoolIndex pool, Bytes used) { ledger.Observe(pool, used, now, log); }
  void Pass(Duration time) {
    now += time;
    ledger.Tick(now, log);
  }

  // What the driver shows when nobody takes memory past the broker and nothing is pending.
  Bytes Live(PoolIndex pool) const {
    Bytes live = 0;
    for (const Lease* lease : ledger.Leases({}, ~std::size_t{0})) {
      if (lease->pool == pool && lease->state >= State::kOffered &&
          lease->state <= State::kDestroying) {
        live += lease->size;
      }
    }
    return live;
  }
  State StateOf(LeaseId lease) const { return ledger.FindLease(lease)->state; }
  bool Gone(LeaseId lease) const { return ledger.FindLease(lease) == nullptr; }
  PoolUse Use(PoolIndex pool = 0) const { return ledger.Use(pool); }

  // The effects of a kind so far.
  std::vector<Effect> Seen(Effect::Kind kind) const {
    std::vector<Effect> seen;
    for (const Effect& effect : log) {
      if (effect.kind == kind) seen.push_back(effect);
    }
    return seen;
  }
  // Those told of an event about a lease.
  std::vector<SessionId> Told(EventType type, LeaseId lease) const {
    std::vector<SessionId> told;
    for (const Effect& effect : Seen(Effect::Kind::kEvent)) {
      if (effect.event == type && effect.lease == lease)
        told.insert(told.end(), effect.sessions.begin(), effect.sessions.end());
    }
    return told;
  }
  bool Destroying(LeaseId lease) const {
    for (const Effect& effect : Seen(Effect::Kind::kDestroy)) {
      if (effect.lease == lease) return true;
    }
    return false;
  }
  const Error* Failure(GroupId group) const {
    for (const Effect& effect : log) {
      if (effect.kind == Effect::Kind::kFailed && effect.group == group) return &*effect.error;
    }
    return nullptr;
  }

  Ledger ledger;
  Time now{std::chrono::hours(1)};
  Effects log;
  std::uint64_t processes = 0;
};

template <typename T>
void ExpectRefused(const Result<T>& result, Code code, Reason reason) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(CodeName(result.error().code), CodeName(code)) << result.error().message;
  EXPECT_EQ(static_cast<int>(result.error().reason), static_cast<int>(reason))
      << result.error().message;
  EXPECT_NE(result.error().message, "");
}

}  // namespace gpulease::ledger
