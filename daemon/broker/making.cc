// SPDX-License-Identifier: Apache-2.0
//
// Broker: chunks are made and closed here, on the lanes or, for a request that waits for them, on
// its own thread.
#include <algorithm>

#include "daemon/broker/broker.h"

namespace gpulease::broker {
namespace {

using ledger::Effect;
using ledger::Effects;
using ledger::GroupId;
using ledger::LeaseId;
using ledger::PoolIndex;
using ledger::PoolKind;

// A request waits so long for its GPU's gate; then its grant is awaited like a queued one.
constexpr Duration kGateWait = std::chrono::milliseconds(20);
// Host memory is populated at about 4 GiB/s: so much takes a few milliseconds, more is not a
// request's business, and neither is the start of a process, nor what it answers.
constexpr Bytes kMostHostHere = 16 * kMiB;
constexpr Duration kCloseTogether = std::chrono::milliseconds(1);

}  // namespace

std::vector<Broker::MakeItem> Broker::ItemsOf(GroupId group) const {
  std::vector<MakeItem> items;
  MutexLock lock(mutex_);
  for (const LeaseId id : ledger_.GroupLeases(group)) {
    const ledger::Lease* const lease = ledger_.FindLease(id);
    if (lease != nullptr && lease->state == ledger::State::kMaking) {
      items.push_back({id, lease->owner, lease->pool, lease->chunks, lease->page_size, lease->ipc});
    }
  }
  return items;
}

bool Broker::StillWanted(GroupId group) const {
  MutexLock lock(mutex_);
  const std::vector<LeaseId> leases = ledger_.GroupLeases(group);
  if (stopping_ || leases.empty()) return false;
  const ledger::Lease* const lease = ledger_.FindLease(leases.front());
  return lease != nullptr && lease->owner;
}

Result<std::shared_ptr<const memory::LeaseMemory>> Broker::MakeChunks(GroupId group,
                                                                      const MakeItem& item,
                                                                      ledger::PageSize& page_size) {
  auto memory = std::make_shared<memory::LeaseMemory>();
  const Pool& pool = options_.pools[item.pool];
  if (pool.spec.kind == PoolKind::kDevice) {
    if (item.ipc) {
      Result<memory::IpcBlock> block = watches_[item.pool].ipc->CreateBlock(item.chunks.front());
      if (!block.ok()) return std::move(block).error();
      memory->device.push_back(std::make_shared<const UniqueFd>(std::move(block->keeps)));
      memory->ipc_handle = std::move(block->handle);
      memory->ipc_offset = block->offset;
      return std::shared_ptr<const memory::LeaseMemory>(std::move(memory));
    }
    memory->device.reserve(item.chunks.size());
    for (const Bytes bytes : item.chunks) {
      Result<UniqueFd> chunk = watches_[item.pool].device->CreateChunk(bytes);
      if (!chunk.ok()) return std::move(chunk).error();
      memory->device.push_back(std::make_shared<const UniqueFd>(std::move(*chunk)));
    }
    return std::shared_ptr<const memory::LeaseMemory>(std::move(memory));
  }
  Bytes total = 0;
  for (const Bytes bytes : item.chunks) total += bytes;
  page_size = memory::ChoosePageSize(item.page_size, total, pool.numa_node);
  memory->host.reserve(item.chunks.size());
  for (const Bytes bytes : item.chunks) {
    memory::HostRequest request;
    request.size = bytes;
    request.node = pool.numa_node;
    request.bind =
        std::count_if(options_.pools.begin(), options_.pools.end(),
                      [](const Pool& other) { return other.spec.kind == PoolKind::kHost; }) > 1;
    request.page_size = page_size;
    request.threads = options_.populate_threads;
    request.wanted = [this, group] { return StillWanted(group); };
    Result<memory::HostChunk> chunk = memory::CreateHostChunk(request);
    if (!chunk.ok()) return std::move(chunk).error();
    memory->host.push_back(std::move(*chunk));
  }
  return std::shared_ptr<const memory::LeaseMemory>(std::move(memory));
}

Status Broker::PrepareIpc(const std::vector<MakeItem>& items) const {
  for (const MakeItem& item : items) {
    if (!item.ipc) continue;
    const Result<bool> started = watches_[item.pool].ipc->Prepare();
    if (!started.ok()) return started.error();
    // What its context takes belongs to nobody's lease.
    if (*started) watches_[item.pool].lane->ObserveAt(BootClock::now());
  }
  return {};
}

void Broker::WatchIpc(LeaseId lease) {
  const std::shared_ptr<const memory::LeaseMemory> memory = store_.Find(lease);
  if (!memory || memory->device.empty()) return;
  if (const Status watched = hang_ups_->Watch(lease, memory->device.front()); !watched.ok()) {
    options_.report("lease " + std::to_string(lease.value) +
                    " would not end with its memory: " + watched.error().message);
  }
}

void Broker::LoseLease(LeaseId lease) {
  Effects effects;
  std::string why;
  {
    MutexLock lock(mutex_);
    const ledger::Lease* const found = ledger_.FindLease(lease);
    if (found == nullptr) return;
    why = "gpulease-ipc-host of " + options_.pools[found->pool].spec.name + ", which had it, ended";
    ledger_.LoseLease(lease, why, BootClock::now(), effects);
    Settle(effects);
  }
  if (!effects.empty())
    options_.report("lease " + std::to_string(lease.value) + " is lost: " + why);
  Carry(std::move(effects));
}

std::optional<Error> Broker::FailureOf(ledger::SessionId session, LeaseId lease) const {
  for (const Failure& failure : failures_) {
    if (failure.lease == lease && failure.session == session) return failure.error;
  }
  return std::nullopt;
}

Error Broker::WhyOver(ledger::SessionId session, LeaseId lease, Error error) const {
  if (std::optional<Error> failure = FailureOf(session, lease)) return *std::move(failure);
  return error;
}

std::optional<Status> Broker::Make(GroupId group, const std::vector<MakeItem>& items,
                                   std::optional<Duration> most) {
  std::vector<PoolIndex> pools;
  for (const MakeItem& item : items) {
    if (options_.pools[item.pool].spec.kind == PoolKind::kDevice) pools.push_back(item.pool);
  }
  std::sort(pools.begin(), pools.end());
  pools.erase(std::unique(pools.begin(), pools.end()), pools.end());
  std::vector<memory::Lane*> lanes;
  for (const PoolIndex pool : pools) lanes.push_back(watches_[pool].lane.get());

  Effects effects;
  Status outcome;
  std::optional<Error> failed;
  if (Status prepared = PrepareIpc(items); !prepared.ok()) failed = std::move(prepared).error();
  {
    // The ledger learns of the chunks before the gates open, so that no view of the driver is taken
    // in between.
    memory::Gates gates;
    if (!gates.Enter(std::move(lanes), most)) return std::nullopt;
    ledger::PageSize page_size = ledger::PageSize::kSmall;
    std::vector<std::shared_ptr<const memory::LeaseMemory>> made;
    for (const MakeItem& item : items) {
      if (failed) break;
      auto memory = MakeChunks(group, item, page_size);
      if (memory.ok()) {
        made.push_back(std::move(*memory));
      } else {
        failed = std::move(memory).error();
      }
    }
    if (failed) made.clear();
    for (std::size_t i = 0; i < made.size(); ++i) store_.Put(items[i].lease, std::move(made[i]));
    MutexLock lock(mutex_);
    if (failed) {
      ledger_.MakeFailed(group, *failed, BootClock::now(), effects);
      if (ledger_.GroupLeases(group).empty()) {
        // Who asked is told here, and need not come for it.
        if (most) {
          std::erase_if(effects, [&](const Effect& effect) {
            return effect.kind == Effect::Kind::kFailed && effect.group == group;
          });
        }
        outcome = *std::move(failed);
      }
    } else {
      ledger_.Made(group, page_size, BootClock::now(), effects);
      for (const MakeItem& item : items) {
        if (item.ipc) WatchIpc(item.lease);
      }
    }
    Settle(effects);
  }
  Carry(std::move(effects));
  return outcome;
}

Status Broker::MakeHere(GroupId group) {
  const std::vector<MakeItem> items = ItemsOf(group);
  Bytes host = 0;
  bool ipc = false;
  for (const MakeItem& item : items) {
    ipc = ipc || item.ipc;
    if (options_.pools[item.pool].spec.kind != PoolKind::kHost) continue;
    for (const Bytes bytes : item.chunks) host += bytes;
  }
  if (host <= kMostHostHere && !ipc) {
    if (std::optional<Status> made = Make(group, items, kGateWait)) return *std::move(made);
  }
  MakeOnLane(group);
  return {};
}

void Broker::MakeOnLane(GroupId group) {
  const std::vector<MakeItem> items = ItemsOf(group);
  if (items.empty()) return;
  const bool one_gpu = std::all_of(items.begin(), items.end(), [&](const MakeItem& item) {
    return item.pool == items.front().pool &&
           options_.pools[item.pool].spec.kind == PoolKind::kDevice && !item.ipc;
  });
  memory::Lane& lane = one_gpu ? *watches_[items.front().pool].lane : *makers_;
  lane.Post([this, group, items] { Make(group, items, std::nullopt); });
}

void Broker::Destroy(LeaseId lease, PoolIndex pool) {
  auto close = [this, lease, pool] {
    // Host memory stays until nobody else has it: ObserveHost lets it go.
    if (options_.pools[pool].spec.kind == PoolKind::kDevice) {
      bool awaited;
      {
        MutexLock lock(mutex_);
        awaited = watches_[pool].releasing_since != kNever;
      }
      // What others use just now, so that what they took lately is not taken for what is released.
      if (!awaited) ObserveDevice(pool);
      hang_ups_->Forget(lease);
      store_.Take(lease);
    }
    Effects effects;
    {
      MutexLock lock(mutex_);
      ledger_.Destroyed(lease, BootClock::now(), effects);
      Settle(effects);
    }
    Carry(std::move(effects));
  };
  bool awaited;
  {
    MutexLock lock(mutex_);
    awaited = ledger_.Use(pool).queued > 0;
  }
  // Where nobody waits for it, some are closed together, out of the way of who allocates next.
  if (awaited) {
    watches_[pool].lane->Post(std::move(close));
  } else {
    watches_[pool].lane->PostLater(std::move(close), kCloseTogether);
  }
}

}  // namespace gpulease::broker
