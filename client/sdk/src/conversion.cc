// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/conversion.h"

#include <utility>

namespace gpulease {

wire::AllocationSpec SpecOf(const AllocateOptions& options) {
  wire::AllocationSpec spec;
  spec.usage = static_cast<wire::UsageHint>(options.usage);
  if (options.usage == Usage::kNone)
    spec.kind =
        options.kind == MemoryKind::kHost ? wire::MemoryKind::kHost : wire::MemoryKind::kDevice;
  spec.size_bytes = options.size_bytes;
  spec.alignment_bytes = options.alignment_bytes;
  spec.gpu_uuid = options.gpu_uuid;
  if (options.numa_node) spec.numa_node = *options.numa_node;
  spec.page_size = options.page_size == PageSize::kHuge    ? wire::PageSize::kHuge
                   : options.page_size == PageSize::kSmall ? wire::PageSize::kSmall
                                                           : wire::PageSize::kAuto;
  spec.name = options.name;
  spec.mode = options.mode;
  spec.gid = options.gid;
  spec.labels = options.labels;
  spec.linger_ms =
      options.linger.count() > 0 ? static_cast<std::uint64_t>(options.linger.count()) : 0;
  spec.persistent = options.persistent;
  spec.death_notice = options.death_notice;
  spec.reserve_bytes = options.reserve_bytes;
  spec.ipc_handle = options.ipc_handle;
  return spec;
}

wire::Access AccessOf(Access access) {
  return access == Access::kReadOnly ? wire::Access::kReadOnly : wire::Access::kReadWrite;
}

BlockingLease BlockingOf(const wire::Blocker& blocker) {
  return {.lease_id = blocker.lease_id,
          .pid = blocker.pid,
          .uid = blocker.uid,
          .size_bytes = blocker.size_bytes};
}

LeaseStatus StatusOf(const wire::Lease& lease) {
  LeaseStatus status;
  status.id = lease.lease_id;
  status.generation = lease.generation;
  status.kind = lease.kind == wire::MemoryKind::kHost ? MemoryKind::kHost : MemoryKind::kDevice;
  // The numbers are the messages' own; what a newer daemon knows more is kUnknown.
  const int state = static_cast<int>(lease.state);
  status.state = state >= 0 && state <= static_cast<int>(LeaseState::kQuarantined)
                     ? static_cast<LeaseState>(state)
                     : LeaseState::kUnknown;
  status.size_bytes = lease.size_bytes;
  status.requested_bytes = lease.requested_bytes;
  status.gpu_uuid = lease.gpu_uuid;
  status.numa_node = lease.numa_node;
  status.name = lease.name;
  status.owner = lease.owner;
  status.uid = lease.uid;
  status.mode = lease.mode;
  status.tenant = lease.tenant;
  status.labels = lease.labels;
  status.death_notice = lease.death_notice;
  status.ipc = lease.ipc;
  status.holder_count = static_cast<std::uint32_t>(lease.holders.size());
  status.queue_position = lease.queue_position;
  status.loading = lease.loading;
  status.sealed = lease.sealed;
  status.content_tag = lease.content_tag;
  status.persistent = lease.persistent;
  status.linger = std::chrono::milliseconds(lease.linger_ms);
  status.orphan = lease.orphan;
  status.reserved_bytes = lease.reserved_bytes;
  status.target_bytes = lease.target_bytes;
  const int residence = static_cast<int>(lease.residence);
  if (residence >= 0 && residence <= static_cast<int>(Residence::kResuming))
    status.residence = static_cast<Residence>(residence);
  status.suspended_bytes = lease.suspended_bytes;
  for (const wire::Blocker& blocker : lease.blockers) {
    status.blockers.push_back(BlockingOf(blocker));
  }
  return status;
}

BudgetStatus StatusOf(const wire::Budget& budget) {
  BudgetStatus status;
  status.kind = budget.kind == wire::MemoryKind::kHost ? MemoryKind::kHost : MemoryKind::kDevice;
  status.gpu_uuid = budget.gpu_uuid;
  status.numa_node = budget.numa_node;
  status.leasable_bytes = budget.leasable_bytes;
  status.free_bytes = budget.free_bytes;
  status.mine_bytes = budget.mine_bytes;
  status.tenant_left_bytes = budget.tenant_left_bytes;
  status.waiting = budget.waiting;
  status.message = budget.message;
  for (const wire::Blocker& holder : budget.holders) status.holders.push_back(BlockingOf(holder));
  return status;
}

NodeStatus StatusOf(const wire::GetNodeResponse& node) {
  NodeStatus status;
  status.version = node.version;
  status.instance = node.instance;
  status.simulated = node.simulated;
  for (const wire::Gpu& gpu : node.gpus) {
    const wire::MemoryUse memory = gpu.memory.value_or(wire::MemoryUse{});
    GpuStatus one;
    one.uuid = gpu.uuid;
    one.name = gpu.name;
    one.ready = gpu.state == wire::GpuState::kReady;
    one.message = gpu.message;
    one.total_bytes = memory.total_bytes;
    one.free_bytes = memory.free_bytes;
    one.leased_bytes = memory.leased_bytes;
    one.outside_bytes = memory.outside_bytes;
    one.numa_node = gpu.numa_node;
    status.gpus.push_back(std::move(one));
  }
  for (const wire::HostMemory& host : node.host) {
    const wire::MemoryUse memory = host.memory.value_or(wire::MemoryUse{});
    status.host.push_back({.numa_node = host.numa_node,
                           .total_bytes = memory.total_bytes,
                           .free_bytes = memory.free_bytes,
                           .leased_bytes = memory.leased_bytes});
  }
  return status;
}

Event EventOf(wire::Event event) {
  Event converted;
  const int type = static_cast<int>(event.type);
  converted.type = type >= 0 && type <= static_cast<int>(EventType::kResumed)
                       ? static_cast<EventType>(type)
                       : EventType::kUnknown;
  converted.sequence = event.sequence;
  converted.lease_id = event.lease_id;
  converted.name = std::move(event.name);
  converted.gpu_uuid = std::move(event.gpu_uuid);
  converted.message = std::move(event.message);
  return converted;
}

}  // namespace gpulease
