// SPDX-License-Identifier: Apache-2.0
//
// Broker: what the driver and the kernel show of the memory, asked on the lanes and told to the
// ledger.
#include <algorithm>

#include "daemon/broker/broker.h"
#include "daemon/broker/suspects.h"
#include "daemon/memory/numa.h"

namespace gpulease::broker {
namespace {

using ledger::Effects;
using ledger::LeaseId;
using ledger::PoolIndex;
using ledger::PoolKind;

// While something is awaited, the pause grows with the time it has taken: from a quarter of a
// millisecond, right after a release, to a quarter of a second. (A look costs 5 µs, H200.)
constexpr Duration kShortestPause = std::chrono::microseconds(250);
constexpr Duration kLongestPause = std::chrono::milliseconds(250);
constexpr Duration kAfterBound = std::chrono::seconds(1);
// With clients connected and nothing awaited: how long another program's use may go unseen.
constexpr Duration kIdlePause = std::chrono::seconds(5);
constexpr Duration kFailedPause = std::chrono::seconds(2);
// How long a stop may wait for the listener.
constexpr std::chrono::milliseconds kXidPause{300};
constexpr Duration kStatusAge = std::chrono::milliseconds(500);
constexpr Duration kStuck = std::chrono::seconds(10);
constexpr Duration kSuspectsAge = std::chrono::seconds(2);

std::string Seconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(duration).count()) + " s";
}

}  // namespace

Time Broker::NextObservation(PoolIndex pool, Time now) {
  PoolWatch& watch = watches_[pool];
  const std::vector<PoolIndex> awaited = ledger_.PoolsToObserve();
  if (std::find(awaited.begin(), awaited.end(), pool) == awaited.end()) {
    watch.releasing_since = kNever;
    if (!watch.device || ledger_.session_count() == 0) return kNever;
    return After(now, kIdlePause);
  }
  if (watch.releasing_since == kNever) watch.releasing_since = now;
  const Duration waited = now - watch.releasing_since;
  if (waited > release_bound_) return After(now, kAfterBound);
  return After(now, std::clamp(waited / 16, kShortestPause, kLongestPause));
}

Time Broker::ObserveDevice(PoolIndex pool) {
  PoolWatch& watch = watches_[pool];
  const std::string& uuid = options_.pools[pool].gpu.uuid;
  if (!options_.nvml) return kNever;
  {
    MutexLock lock(mutex_);
    if (watch.lost) return kNever;
  }
  Effects effects;
  Time next = kNever;
  bool look_for_suspects = false;
  std::optional<Error> failed;
  {
    memory::Gates gates;
    gates.Enter({watch.lane.get()}, std::nullopt);
    const Result<driver::GpuMemory> seen = options_.nvml->Memory(uuid);
    const Time now = BootClock::now();
    MutexLock lock(mutex_);
    if (seen.ok()) {
      ledger_.Observe(pool, seen->used, now, effects);
      Settle(effects);
      watch.observed = now;
      next = NextObservation(pool, now);
      const ledger::PoolUse use = ledger_.Use(pool);
      look_for_suspects =
          use.unconfirmed + use.quarantined > 0 && now - watch.suspects_at > kSuspectsAge;
      if (use.unconfirmed + use.quarantined == 0) watch.suspects.clear();
    } else {
      failed = seen.error();
      next = After(now, kFailedPause);
    }
  }
  if (failed && failed->reason == Reason::kGpuUnavailable) {
    Lose(uuid, failed->message);
    return kNever;
  }
  if (failed) {
    SetState(pool, GpuState::kUnresponsive, failed->message);
  } else {
    SetState(pool, GpuState::kReady, "");
    if (Result<int> percent = options_.nvml->UtilizationPercent(uuid); percent.ok()) {
      MutexLock lock(mutex_);
      watch.utilization_percent = *percent;
    }
  }
  if (look_for_suspects) {
    std::vector<Suspect> suspects = FindSuspects(options_.cuda->simulated());
    MutexLock lock(mutex_);
    watch.suspects = std::move(suspects);
    watch.suspects_at = BootClock::now();
  }
  Carry(std::move(effects));
  return next;
}

Time Broker::ListenForXids() {
  const Result<std::optional<driver::Xid>> heard = xid_events_->Wait(kXidPause);
  // A GPU that is lost shows it to who looks at it.
  if (!heard.ok()) return After(BootClock::now(), kFailedPause);
  if (const std::optional<driver::Xid>& xid = *heard) {
    const std::string name = "Xid " + std::to_string(xid->number);
    if (options_.fatal_xids.contains(static_cast<std::uint32_t>(xid->number))) {
      Lose(xid->uuid, "the driver reports " + name);
    } else {
      options_.report(xid->uuid + ": the driver reports " + name);
    }
  }
  return BootClock::now();
}

Time Broker::ObserveHost(PoolIndex pool) {
  std::vector<LeaseId> leases;
  {
    MutexLock lock(mutex_);
    leases = ledger_.LeasesToObserve(pool);
  }
  Effects effects;
  for (const LeaseId lease : leases) {
    bool in_use = false;
    if (const std::shared_ptr<const memory::LeaseMemory> memory = store_.Find(lease)) {
      in_use = memory->InUse();
      if (!in_use) store_.Take(lease);
    }
    // Free in the books only now that it is free on the machine.
    MutexLock lock(mutex_);
    ledger_.ObserveLease(lease, in_use, BootClock::now(), effects);
    Settle(effects);
  }
  Time next;
  {
    MutexLock lock(mutex_);
    next = NextObservation(pool, BootClock::now());
  }
  Carry(std::move(effects));
  return next;
}

void Broker::SetState(PoolIndex pool, GpuState state, const std::string& message) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    PoolWatch& watch = watches_[pool];
    if (watch.state == state || watch.draining) return;
    watch.state = state;
    watch.message = message;
    ledger_.SetPoolUsable(pool, state == GpuState::kReady, message, BootClock::now(), effects);
    Settle(effects);
  }
  options_.report(options_.pools[pool].gpu.uuid +
                  (state == GpuState::kReady ? " is ready" : ": " + message));
  Carry(std::move(effects));
}

bool Broker::idle() const {
  return std::none_of(watches_.begin(), watches_.end(),
                      [](const PoolWatch& watch) { return watch.lane->BusySince().has_value(); });
}

void Broker::CheckLanes() {
  const Time now = BootClock::now();
  for (PoolIndex i = 0; i < options_.pools.size(); ++i) {
    if (!watches_[i].device) continue;
    const std::optional<Time> since = watches_[i].lane->BusySince();
    if (since && now - *since > kStuck) {
      SetState(i, GpuState::kUnresponsive,
               "a driver call has not returned for " + Seconds(now - *since));
    }
  }
  // What has a drained GPU open besides may have ended meanwhile.
  if (any_draining_) CheckDrained();
}

void Broker::ShowMissing(std::vector<AbsentGpu> gpus) {
  MutexLock lock(mutex_);
  missing_ = std::move(gpus);
}

bool Broker::admits() const {
  MutexLock lock(mutex_);
  return !keep_out_ && !stopping_;
}

std::size_t Broker::lease_count() const {
  MutexLock lock(mutex_);
  return ledger_.lease_count();
}

NodeView Broker::Node() {
  NodeView view;
  const Time now = BootClock::now();
  {
    MutexLock lock(mutex_);
    for (PoolIndex i = 0; i < options_.pools.size(); ++i) {
      const Pool& pool = options_.pools[i];
      PoolWatch& watch = watches_[i];
      if (pool.spec.kind == PoolKind::kHost) {
        view.host.push_back(
            {pool.numa_node, ledger_.Use(i), memory::FreeHugePages(pool.numa_node)});
        continue;
      }
      view.gpus.push_back({pool.gpu, watch.state, watch.message, ledger_.Use(i),
                           watch.utilization_percent, watch.suspects});
      // The next who asks sees what others have taken meanwhile.
      if (now - watch.observed > kStatusAge && !watch.lost) watch.lane->ObserveAt(now);
    }
    view.tenants = ledger_.Tenants();
    view.keeper = options_.keeper && options_.keeper->connected();
    view.set_aside = set_aside_;
    view.sessions = ledger_.session_count();
    view.leases = ledger_.lease_count();
    view.chunks = ledger_.chunk_count();
    if (keep_out_) view.message = keep_out_->message;
    for (const AbsentGpu& gpu : missing_) {
      GpuView absent;
      absent.description.uuid = gpu.uuid;
      absent.state = gpu.state;
      absent.message = gpu.message;
      view.gpus.push_back(std::move(absent));
    }
  }
  for (const driver::GpuDescription& gpu : options_.unsupported_gpus) {
    GpuView unsupported;
    unsupported.description = gpu;
    unsupported.state = GpuState::kUnsupported;
    unsupported.message = gpu.unsupported;
    view.gpus.push_back(std::move(unsupported));
  }
  return view;
}

}  // namespace gpulease::broker
