// SPDX-License-Identifier: Apache-2.0
//
// Broker: a lease's chunks on their way to a session.
#include "daemon/broker/broker.h"

namespace gpulease::broker {

using ledger::GroupId;
using ledger::LeaseId;
using ledger::SessionId;
using ledger::State;

// The group as it is now: pushed when its chunks are there, else as queued.
Result<Grant> Broker::HandOver(SessionId session, std::uint64_t push_tag, GroupId group) {
  Grant grant;
  std::vector<Parts> all;
  {
    MutexLock lock(mutex_);
    for (const LeaseId id : ledger_.GroupLeases(group)) {
      const ledger::Lease* const lease = ledger_.FindLease(id);
      if (lease == nullptr || lease->owner != session) continue;
      all.push_back(PartsOf(*lease, session));
      grant.leases.push_back(ViewOf(all.back().lease));
      if (lease->state == State::kQueued || lease->state == State::kMaking) grant.queued = true;
    }
    if (grant.queued) grant.queue_position = ledger_.QueuePosition(group);
  }
  if (grant.leases.empty()) {
    return MakeError(Code::kAborted, Reason::kHandOver,
                     "the lease was given back or lost while it was made: retry");
  }
  if (grant.queued) return grant;
  for (const Parts& parts : all) {
    GPULEASE_RETURN_IF_ERROR(
        Push(session, push_tag, parts,
             parts.lease.sealed ? ledger::Access::kReadOnly : ledger::Access::kReadWrite));
  }
  return grant;
}

Broker::Parts Broker::PartsOf(const ledger::Lease& lease, SessionId session) const {
  Parts parts{lease, store_.Find(lease.id)};
  const std::uint32_t open = ledger::OpenChunks(lease, session);
  parts.lease.target = 0;
  for (std::size_t i = open; i < lease.chunks.size(); ++i) parts.lease.size -= lease.chunks[i];
  parts.lease.chunks.resize(open);
  return parts;
}

Status Broker::Push(SessionId session, std::uint64_t push_tag, const Parts& parts,
                    ledger::Access access, std::uint32_t first) {
  const ledger::Lease& lease = parts.lease;
  const memory::LeaseMemory* const memory = parts.memory.get();
  const bool device = lease.kind == ledger::PoolKind::kDevice;
  if (memory == nullptr ||
      (device ? memory->device.size() : memory->host.size()) < lease.chunks.size()) {
    return MakeError(Code::kAborted, Reason::kHandOver, "the lease ended while it was handed over");
  }
  peers::Parcel parcel;
  parcel.tag = push_tag;
  parcel.lease_id = lease.id.value;
  parcel.generation = lease.generation;
  parcel.read_only = access == ledger::Access::kReadOnly;
  if (device) {
    for (std::size_t i = first; i < lease.chunks.size(); ++i)
      parcel.descriptors.push_back(memory->device[i]->get());
    parcel.owner = parts.memory;
  } else {
    auto opened = std::make_shared<std::vector<UniqueFd>>();
    for (std::size_t i = first; i < lease.chunks.size(); ++i) {
      Result<UniqueFd> fd = memory->host[i].OpenFor(access);
      if (!fd.ok()) return std::move(fd).error();
      parcel.descriptors.push_back(fd->get());
      opened->push_back(std::move(*fd));
    }
    parcel.owner = opened;
  }
  if (parcel.descriptors.empty()) return {};
  return reception_->Push(session, std::move(parcel));
}

}  // namespace gpulease::broker
