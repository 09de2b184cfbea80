// SPDX-License-Identifier: Apache-2.0
//
// LeaseMemory and MemoryStore: the chunks that exist, by lease. To lend is to send duplicates of
// the descriptors, to free is to drop the last reference.
#pragma once

#include <memory>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory/host_memory.h"

namespace gpulease::memory {

// The chunks of one lease, in the order of their offsets. Immutable once made.
struct LeaseMemory {
  std::vector<UniqueFd> device;
  std::vector<HostChunk> host;
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

 private:
  mutable Mutex mutex_;
  std::unordered_map<ledger::LeaseId, std::shared_ptr<const LeaseMemory>> leases_
      GPULEASE_GUARDED_BY(mutex_);
};

}  // namespace gpulease::memory
