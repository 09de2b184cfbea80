// SPDX-License-Identifier: Apache-2.0
//
// LeaseMemory and MemoryStore: the chunks that exist, by lease. To lend is to send duplicates of
// the descriptors, to free is to drop the last reference.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory/host_memory.h"

namespace gpulease::memory {

// The chunks of one lease, in the order of their offsets. Immutable once made: a lease that gets
// other chunks gets another one, which shares those that stay.
struct LeaseMemory {
  std::vector<std::shared_ptr<const UniqueFd>> device;
  std::vector<HostChunk> host;
  // Of a lease with `ipc`, whose one chunk keeps the memory and is not the memory: the handle by
  // which it is opened, and where in what that opens it begins.
  std::string ipc_handle;
  Bytes ipc_offset = 0;
  bool InUse() const {
    for (const HostChunk& chunk : host) {
      if (chunk.InUse()) return true;
    }
    return false;
  }
};

// Threads: any.
class MemoryStore {
 public:
  void Put(ledger::LeaseId lease, std::shared_ptr<const LeaseMemory> memory) {
    MutexLock lock(mutex_);
    leases_[lease] = std::move(memory);
  }
  std::shared_ptr<const LeaseMemory> Find(ledger::LeaseId lease) const {
    MutexLock lock(mutex_);
    const auto found = leases_.find(lease);
    return found == leases_.end() ? nullptr : found->second;
  }
  // Removes it; the chunks go when the last reference does.
  std::shared_ptr<const LeaseMemory> Take(ledger::LeaseId lease) {
    MutexLock lock(mutex_);
    const auto found = leases_.find(lease);
    if (found == leases_.end()) return nullptr;
    std::shared_ptr<const LeaseMemory> memory = std::move(found->second);
    leases_.erase(found);
    return memory;
  }
  // The device chunks of `end` belong to the end of `lease` from here on.
  void Merge(ledger::LeaseId lease, ledger::LeaseId end) {
    MutexLock lock(mutex_);
    const auto from = leases_.find(end);
    const auto to = leases_.find(lease);
    if (from == leases_.end() || to == leases_.end()) return;
    auto merged = std::make_shared<LeaseMemory>();
    merged->device = to->second->device;
    merged->device.insert(merged->device.end(), from->second->device.begin(),
                          from->second->device.end());
    to->second = std::move(merged);
    leases_.erase(from);
  }
  // Those of `lease` from `chunk` on belong to `end`.
  void Cut(ledger::LeaseId lease, std::size_t chunk, ledger::LeaseId end) {
    MutexLock lock(mutex_);
    const auto found = leases_.find(lease);
    if (found == leases_.end() || found->second->device.size() < chunk) return;
    const auto& device = found->second->device;
    const auto middle = device.begin() + static_cast<std::ptrdiff_t>(chunk);
    auto left = std::make_shared<LeaseMemory>();
    left->device.assign(device.begin(), middle);
    auto cut = std::make_shared<LeaseMemory>();
    cut->device.assign(middle, device.end());
    found->second = std::move(left);
    leases_[end] = std::move(cut);
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<ledger::LeaseId, std::shared_ptr<const LeaseMemory>> leases_
      GPULEASE_GUARDED_BY(mutex_);
};

}  // namespace gpulease::memory
