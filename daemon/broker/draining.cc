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

void Broker::StartLosing(PoolIndex pool, const std::string& why, Effects& effects) {
  PoolWatch& watch = watches_[pool];
  watch.lost = true;
  watch.draining = true;
  watch.state = GpuState::kLost;
  watch.message = why + "; its leases have ended";
  watch.suspects.clear();
  watch.utilization_percent = -1;
  any_draining_ = true;
  ledger_.LosePool(pool, why, BootClock::now(), effects);
}

Result<std::size_t> Broker::Drain(const peers::Peer& peer, std::string_view uuid, DrainMode mode) {
  if (!options_.is_administrator(peer.user)) return AdministratorsAlone();
  const PoolIndex pool = FindGpu(uuid);
  if (pool == ledger::kNoPool) {
    MutexLock lock(mutex_);
    if (std::any_of(retired_.begin(), retired_.end(),
                    [&](const auto& gpu) { return gpu.uuid == uuid; }))
      return std::size_t{0};
    return MakeError(
        Code::kNotFound, Reason::kUnspecified,
        "no GPU " + std::string(uuid) + " is served here: gpuleasectl gpus lists them");
  }
  ledger::UserSpec administrator = peer.user;
  administrator.administrator = true;
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (stopping_) return Stopping();
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
    Settle(effects);
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
  bool was_retired = false;
  {
    MutexLock lock(mutex_);
    if (stopping_) return Stopping();
    was_retired = std::erase_if(retired_, [&](const auto& gpu) { return gpu.uuid == uuid; }) > 0;
    const bool draining = pool != ledger::kNoPool && watches_[pool].draining;
    if (!was_retired && !draining) {
      return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                       std::string(uuid) + " is not drained");
    }
    if (!was_retired && watches_[pool].lost) {
      return MakeError(Code::kUnavailable, Reason::kGpuUnavailable,
                       std::string(uuid) + " is lost, and its leases are being ended: retry");
    }
    if (draining) watches_[pool].returning = watches_[pool].lost;
    if (draining && !watches_[pool].lost) {
      PoolWatch& watch = watches_[pool];
      watch.draining = false;
      watch.state = GpuState::kReady;
      watch.message.clear();
      ledger_.SetPoolUsable(pool, true, "", BootClock::now(), effects);
      Settle(effects);
    }
  }
  options_.report(std::string(uuid) + " is put back into service by uid " +
                  std::to_string(peer.user.uid));
  Carry(std::move(effects));
  KeepNode();
  if (was_retired) options_.on_retired(std::string(uuid) + " is put back into service");
  return {};
}

std::vector<state::RetiredGpu> Broker::retired() const {
  MutexLock lock(mutex_);
  return retired_;
}

void Broker::Lose(std::string_view uuid, const std::string& why) {
  const PoolIndex pool = FindGpu(uuid);
  if (pool == ledger::kNoPool) return;
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (watches_[pool].lost) return;
    StartLosing(pool, why, effects);
    Settle(effects);
  }
  options_.report(std::string(uuid) + " is lost: " + why + "; its leases end");
  Carry(std::move(effects));
}

void Broker::CheckDrained() {
  // A GPU that is safe to reset is open nowhere here. (A lost one is not waited for.)
  std::vector<bool> hosted(watches_.size());
  for (std::size_t i = 0; i < watches_.size(); ++i)
    hosted[i] = watches_[i].ipc != nullptr && watches_[i].ipc->IsThere();
  std::vector<state::RetiredGpu> empty;
  {
    MutexLock lock(mutex_);
    bool any = false;
    for (PoolIndex pool = 0; pool < options_.pools.size(); ++pool) {
      PoolWatch& watch = watches_[pool];
      if (!watch.draining || watch.returning) continue;
      const std::string& uuid = options_.pools[pool].gpu.uuid;
      const bool retired = std::any_of(retired_.begin(), retired_.end(),
                                       [&](const auto& gpu) { return gpu.uuid == uuid; });
      if (retired) continue;
      any = true;
      if (ledger_.Use(pool).leases > 0 || (hosted[pool] && !watch.lost)) continue;
      if (!watch.lost) {
        watch.state = GpuState::kDrained;
        watch.message = "it has no lease any more; the daemon is about to close it";
      }
      retired_.push_back({uuid, watch.lost});
      empty.push_back(retired_.back());
    }
    any_draining_ = any;
  }
  if (empty.empty()) return;
  KeepNode();
  for (const state::RetiredGpu& gpu : empty)
    options_.on_retired(gpu.uuid + (gpu.lost ? " is lost" : " is drained"));
}

void Broker::KeepRetired(std::vector<state::RetiredGpu> gpus) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    for (state::RetiredGpu& gpu : gpus) {
      const PoolIndex pool = FindGpu(gpu.uuid);
      // Where the driver shows it, the former life had no time to say that it must not.
      if (pool == ledger::kNoPool) {
        retired_.push_back(std::move(gpu));
      } else if (gpu.lost) {
        StartLosing(pool, "it was lost before", effects);
      } else {
        StartDraining(pool, effects);
      }
    }
    Settle(effects);
  }
  Carry(std::move(effects));
}

}  // namespace gpulease::broker
