// SPDX-License-Identifier: Apache-2.0
//
// Broker: GPUs that are taken out of service, and put back.
#include <algorithm>

#include "daemon/broker/broker.h"

namespace gpulease::broker {
namespace {

using ledger::Effects;
using ledger::LeaseId;
using ledger::PoolIndex;

Error AdministratorsAlone() {
  return MakeError(Code::kPermissionDenied, Reason::kUnspecified,
                   "only administrators may take a GPU out of service or put it back");
}

}  // namespace

void Broker::StartDraining(PoolIndex pool, Effects& effects) {
  PoolWatch& watch = watches_[pool];
  if (watch.draining) return;
  watch.draining = true;
  watch.state = GpuState::kDraining;
  watch.message = "drained by an administrator";
  any_draining_ = true;
  ledger_.SetPoolUsable(pool, false, watch.message, BootClock::now(), effects);
}

Result<std::size_t> Broker::Drain(const peers::Peer& peer, std::string_view uuid, DrainMode mode) {
  if (!options_.is_administrator(peer.user)) return AdministratorsAlone();
  const PoolIndex pool = FindGpu(uuid);
  if (pool == ledger::kNoPool) {
    MutexLock lock(mutex_);
    if (std::find(drained_.begin(), drained_.end(), uuid) != drained_.end()) return std::size_t{0};
    return MakeError(
        Code::kNotFound, Reason::kUnspecified,
        "no GPU " + std::string(uuid) + " is served here: gpuleasectl gpus lists them");
  }
  ledger::UserSpec administrator = peer.user;
  administrator.administrator = true;
  Effects effects;
  {
    MutexLock lock(mutex_);
    const Time now = BootClock::now();
    StartDraining(pool, effects);
    if (mode != DrainMode::kWait) {
      std::vector<LeaseId> leases;
      for (const ledger::Lease* lease : ledger_.Leases({}, ~std::size_t{0})) {
        if (lease->pool == pool) leases.push_back(lease->id);
      }
      for (const LeaseId lease : leases) {
        // One that went with another's group is not there any more.
        static_cast<void>(
            ledger_.Release({}, administrator, lease, mode == DrainMode::kEnd, now, effects).ok());
      }
    }
  }
  options_.report(std::string(uuid) + " is drained by uid " + std::to_string(peer.user.uid));
  Carry(std::move(effects));
  MutexLock lock(mutex_);
  return std::size_t{ledger_.Use(pool).leases};
}

Status Broker::Undrain(const peers::Peer& peer, std::string_view uuid) {
  if (!options_.is_administrator(peer.user)) return AdministratorsAlone();
  const PoolIndex pool = FindGpu(uuid);
  Effects effects;
  bool was_drained = false;
  {
    MutexLock lock(mutex_);
    was_drained = std::erase(drained_, uuid) > 0;
    const bool draining = pool != ledger::kNoPool && watches_[pool].draining;
    if (!was_drained && !draining) {
      return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                       std::string(uuid) + " is not drained");
    }
    if (draining) {
      PoolWatch& watch = watches_[pool];
      watch.draining = false;
      watch.state = GpuState::kReady;
      watch.message.clear();
      ledger_.SetPoolUsable(pool, true, "", BootClock::now(), effects);
    }
  }
  options_.report(std::string(uuid) + " is put back into service by uid " +
                  std::to_string(peer.user.uid));
  Carry(std::move(effects));
  KeepNode();
  if (was_drained) options_.on_drained(std::string(uuid), false);
  return {};
}

void Broker::CheckDrained() {
  std::vector<std::string> empty;
  {
    MutexLock lock(mutex_);
    bool any = false;
    for (PoolIndex pool = 0; pool < options_.pools.size(); ++pool) {
      PoolWatch& watch = watches_[pool];
      if (!watch.draining || watch.state == GpuState::kDrained) continue;
      any = true;
      if (ledger_.Use(pool).leases > 0) continue;
      watch.state = GpuState::kDrained;
      watch.message = "it has no lease any more; the daemon is about to close it";
      const std::string& uuid = options_.pools[pool].gpu.uuid;
      if (std::find(drained_.begin(), drained_.end(), uuid) == drained_.end())
        drained_.push_back(uuid);
      empty.push_back(uuid);
    }
    any_draining_ = any;
  }
  if (empty.empty()) return;
  KeepNode();
  for (const std::string& uuid : empty) options_.on_drained(uuid, true);
}

void Broker::KeepDrained(std::vector<std::string> uuids) {
  {
    MutexLock lock(mutex_);
    drained_ = std::move(uuids);
    Effects effects;
    for (const std::string& uuid : drained_) {
      const PoolIndex pool = FindGpu(uuid);
      if (pool == ledger::kNoPool) continue;
      // The driver shows it, as the former life had no time to say that it must not.
      StartDraining(pool, effects);
    }
  }
  if (any_draining_) CheckDrained();
}

}  // namespace gpulease::broker
