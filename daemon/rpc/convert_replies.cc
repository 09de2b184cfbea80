// SPDX-License-Identifier: Apache-2.0
//
// Replies and errors.
#include <algorithm>
#include <chrono>

#include "daemon/rpc/convert.h"
#include "gpulease/v1/error.pb.h"

namespace gpulease::rpc {
namespace {

// By number.
static_assert(static_cast<int>(ledger::Residence::kResident) == v1::RESIDENCE_UNSPECIFIED &&
              static_cast<int>(ledger::Residence::kSuspending) == v1::RESIDENCE_SUSPENDING &&
              static_cast<int>(ledger::Residence::kSuspended) == v1::RESIDENCE_SUSPENDED &&
              static_cast<int>(ledger::Residence::kResuming) == v1::RESIDENCE_RESUMING);

std::int64_t Milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

void ToProto(const ledger::PoolUse& use, v1::MemoryUse* out) {
  out->set_total_bytes(use.total);
  out->set_free_bytes(use.free);
  out->set_leased_bytes(use.leased);
  out->set_offered_bytes(use.offered);
  out->set_releasing_bytes(use.releasing);
  out->set_unconfirmed_bytes(use.unconfirmed);
  out->set_quarantined_bytes(use.quarantined);
  out->set_outside_bytes(use.outside);
  out->set_overcommitted_bytes(use.overcommitted);
  out->set_lease_count(use.leases);
  out->set_queue_length(use.queued);
}

void ToProto(const Blocker& blocker, v1::Blocker* out) {
  out->set_lease_id(blocker.lease_id);
  out->set_pid(blocker.pid);
  out->set_uid(blocker.uid);
  out->set_size_bytes(blocker.size_bytes);
}

v1::Access ToProto(ledger::Access access) {
  return access == ledger::Access::kReadOnly ? v1::ACCESS_READ_ONLY : v1::ACCESS_READ_WRITE;
}

// "alice", or "root@REALM" of a container's.
std::string UserText(UserNames& users, std::uint32_t uid, const ledger::Realm& realm) {
  return users.NameOf(uid) + (realm.empty() ? "" : "@" + realm);
}

const char* ComputeModeName(int mode) {
  switch (mode) {
    case 0:
      return "default";
    case 2:
      return "prohibited";
    case 3:
      return "exclusive-process";
    default:
      return "unknown";
  }
}

void ToProto(const broker::HolderView& holder, v1::Holder* to) {
  to->set_session_id(holder.holding.session.value);
  to->set_pid(holder.pid);
  to->set_uid(holder.uid);
  to->set_realm(holder.realm);
  to->set_program(holder.program);
  to->set_access(ToProto(holder.holding.access));
  to->set_owner(holder.owner);
}

}  // namespace

grpc::Status ToGrpc(const Error& error) {
  v1::ErrorDetail detail;
  detail.set_reason(static_cast<v1::Reason>(error.reason));
  detail.set_requested_bytes(error.requested_bytes);
  detail.set_available_bytes(error.available_bytes);
  detail.set_limit_bytes(error.limit_bytes);
  for (const Blocker& blocker : error.blockers) ToProto(blocker, detail.add_blockers());
  v1::ErrorStatus status;
  status.set_code(static_cast<int>(error.code));
  status.set_message(error.message);
  status.add_details()->PackFrom(detail);
  return grpc::Status(static_cast<grpc::StatusCode>(error.code), error.message,
                      status.SerializeAsString());
}

v1::LeaseState ToProto(ledger::State state, bool quarantined) {
  switch (state) {
    case ledger::State::kQueued:
      return v1::LEASE_STATE_QUEUED;
    case ledger::State::kMaking:
    case ledger::State::kOffered:
      return v1::LEASE_STATE_OFFERED;
    case ledger::State::kLeased:
      return v1::LEASE_STATE_LEASED;
    case ledger::State::kRevoking:
      return v1::LEASE_STATE_REVOKING;
    case ledger::State::kReleased:
      return v1::LEASE_STATE_RELEASED;
    case ledger::State::kDestroying:
    case ledger::State::kReleasing:
      return quarantined ? v1::LEASE_STATE_QUARANTINED : v1::LEASE_STATE_RELEASING;
    case ledger::State::kUnconfirmed:
      return quarantined ? v1::LEASE_STATE_QUARANTINED : v1::LEASE_STATE_UNCONFIRMED;
  }
  return v1::LEASE_STATE_UNSPECIFIED;
}

void ToProto(const broker::LeaseView& view, UserNames& users, v1::Lease* out) {
  const ledger::Lease& lease = view.lease;
  out->set_lease_id(lease.id.value);
  out->set_generation(lease.generation);
  out->set_kind(lease.kind == ledger::PoolKind::kDevice ? v1::MEMORY_KIND_DEVICE
                                                        : v1::MEMORY_KIND_HOST);
  out->set_state(ToProto(lease.state, lease.quarantined));
  out->set_requested_bytes(lease.requested);
  out->set_size_bytes(lease.size);
  out->set_alignment_bytes(lease.alignment);
  out->set_gpu_uuid(view.gpu_uuid);
  out->set_numa_node(view.numa_node);
  if (lease.kind == ledger::PoolKind::kHost && lease.page_size != ledger::PageSize::kAuto) {
    out->set_page_size(lease.page_size == ledger::PageSize::kHuge ? v1::PAGE_SIZE_HUGE
                                                                  : v1::PAGE_SIZE_SMALL);
  }
  out->set_name(lease.name);
  out->set_owner(UserText(users, lease.uid, lease.realm));
  out->set_uid(lease.uid);
  out->set_realm(lease.realm);
  out->set_gid(lease.gid);
  out->set_mode(lease.mode);
  out->set_tenant(lease.tenant);
  for (const auto& [key, value] : lease.labels) (*out->mutable_labels())[key] = value;
  for (const Bytes bytes : lease.chunks) out->add_chunks()->set_size_bytes(bytes);
  for (const broker::HolderView& holder : view.holders) ToProto(holder, out->add_holders());
  out->set_loading(lease.loading && !lease.sealed);
  out->set_sealed(lease.sealed);
  out->set_death_notice(lease.death_notice);
  out->set_ipc(lease.ipc);
  out->set_ipc_handle(view.ipc_handle);
  out->set_ipc_offset_bytes(view.ipc_offset);
  out->set_content_tag(lease.content_tag);
  out->set_has_directory(lease.directory != nullptr);
  out->set_persistent(lease.linger == ledger::kForever);
  if (!out->persistent())
    out->set_linger_ms(static_cast<std::uint64_t>(Milliseconds(lease.linger)));
  out->set_orphan(ledger::IsOrphan(lease));
  if (lease.ends != kNever)
    out->set_ends_in_ms(std::max<std::int64_t>(Milliseconds(lease.ends - BootClock::now()), 0));
  out->set_reserved_bytes(lease.reserved);
  out->set_target_bytes(view.target);
  out->set_residence(static_cast<v1::Residence>(lease.residence));
  out->set_suspended_bytes(lease.suspended);
  out->set_age_ms(Milliseconds(BootClock::now() - lease.created));
  out->set_queue_position(view.queue_position);
  for (const Blocker& blocker : view.blockers) ToProto(blocker, out->add_blockers());
}

void ToProto(const broker::Grant& grant, UserNames& users, v1::AllocateResponse* out) {
  for (const broker::LeaseView& view : grant.leases) {
    v1::Lease* const lease = out->add_leases();
    ToProto(view, users, lease);
    // One answer for the whole group: it is awaited or it is there.
    if (grant.queued) lease->set_state(v1::LEASE_STATE_QUEUED);
  }
  out->set_queue_position(grant.queue_position);
}

void ToProto(const broker::ResizeView& view, UserNames& users, v1::ResizeResponse* out) {
  ToProto(view.lease, users, out->mutable_lease());
  out->set_growth_id(view.growth.value);
  out->set_queue_position(view.queue_position);
  for (const broker::HolderView& holder : view.waits_for) ToProto(holder, out->add_waits_for());
  out->set_open_chunks(view.open_chunks);
}

void ToProto(const broker::ResizeView& view, UserNames& users, v1::SuspendResponse* out) {
  ToProto(view.lease, users, out->mutable_lease());
  for (const broker::HolderView& holder : view.waits_for) ToProto(holder, out->add_waits_for());
}

void ToProto(const broker::ResizeView& view, UserNames& users, v1::ResumeResponse* out) {
  ToProto(view.lease, users, out->mutable_lease());
  out->set_growth_id(view.growth.value);
  out->set_queue_position(view.queue_position);
  out->set_open_chunks(view.open_chunks);
}

void ToProto(const broker::BudgetView& view, v1::GetBudgetResponse* out) {
  out->set_tenant(view.tenant);
  for (const broker::PoolBudget& pool : view.pools) {
    v1::Budget* const to = out->add_budgets();
    to->set_kind(pool.kind == ledger::PoolKind::kDevice ? v1::MEMORY_KIND_DEVICE
                                                        : v1::MEMORY_KIND_HOST);
    to->set_gpu_uuid(pool.gpu_uuid);
    to->set_numa_node(pool.numa_node);
    to->set_leasable_bytes(pool.budget.leasable);
    to->set_free_bytes(pool.budget.free);
    to->set_mine_bytes(pool.budget.mine);
    to->set_tenant_left_bytes(pool.budget.tenant_left);
    to->set_waiting(pool.budget.waiting);
    to->set_message(pool.budget.message);
    for (const Blocker& holder : pool.budget.holders) ToProto(holder, to->add_holders());
  }
  out->set_lasting_bytes(view.lasting);
  out->set_lasting_left_bytes(view.lasting_left);
}

void ToProto(const broker::NodeView& view, v1::GetNodeResponse* out) {
  out->set_message(view.message);
  out->mutable_keeper()->set_connected(view.keeper);
  out->mutable_keeper()->set_set_aside(static_cast<std::uint32_t>(view.set_aside));
  for (const broker::GpuView& gpu : view.gpus) {
    const driver::GpuDescription& description = gpu.description;
    v1::Gpu* const to = out->add_gpus();
    to->set_uuid(description.uuid);
    to->set_name(description.name);
    switch (gpu.state) {
      case broker::GpuState::kReady:
        to->set_state(v1::GPU_STATE_READY);
        break;
      case broker::GpuState::kDraining:
        to->set_state(v1::GPU_STATE_DRAINING);
        break;
      case broker::GpuState::kDrained:
        to->set_state(v1::GPU_STATE_DRAINED);
        break;
      case broker::GpuState::kUnresponsive:
        to->set_state(v1::GPU_STATE_UNRESPONSIVE);
        break;
      case broker::GpuState::kLost:
        to->set_state(v1::GPU_STATE_LOST);
        break;
      case broker::GpuState::kUnsupported:
        to->set_state(v1::GPU_STATE_UNSUPPORTED);
        break;
      case broker::GpuState::kMissing:
        to->set_state(v1::GPU_STATE_MISSING);
        break;
    }
    to->set_message(gpu.message);
    ToProto(gpu.use, to->mutable_memory());
    v1::GpuCapabilities* const can = to->mutable_capabilities();
    can->set_virtual_memory(description.virtual_memory);
    can->set_unified_addressing(description.unified_addressing);
    can->set_posix_fd_export(description.posix_fd_export);
    for (const std::string& peer : description.peer_uuids) can->add_peer_uuids(peer);
    can->set_compute_mode(ComputeModeName(description.compute_mode));
    can->set_compute_capability_major(description.compute_major);
    can->set_compute_capability_minor(description.compute_minor);
    can->set_granularity_bytes(description.granularity);
    to->set_numa_node(description.numa_node);
    to->set_pci_bus_id(description.pci_bus_id);
    to->set_utilization_percent(gpu.utilization_percent);
    for (const broker::Suspect& suspect : gpu.suspects) {
      v1::Suspect* const out_suspect = to->add_suspects();
      out_suspect->set_pid(suspect.pid);
      out_suspect->set_program(suspect.program);
      out_suspect->set_why(suspect.why);
    }
  }
  for (const broker::HostView& host : view.host) {
    v1::HostMemory* const to = out->add_host();
    to->set_numa_node(host.numa_node);
    ToProto(host.use, to->mutable_memory());
    to->set_huge_page_free_bytes(host.free_huge_pages);
  }
  for (const ledger::TenantUse& tenant : view.tenants) {
    v1::Tenant* const to = out->add_tenants();
    to->set_name(tenant.spec.name);
    to->set_device_bytes(tenant.device_bytes);
    to->set_device_limit_bytes(tenant.spec.device_limit);
    to->set_host_bytes(tenant.host_bytes);
    to->set_host_limit_bytes(tenant.spec.host_limit);
    to->set_lease_count(tenant.leases);
    to->set_session_count(tenant.sessions);
  }
  out->set_session_count(static_cast<std::uint32_t>(view.sessions));
  out->set_lease_count(static_cast<std::uint32_t>(view.leases));
}

void ToProto(const ledger::Session& session, UserNames& users, v1::Session* out) {
  out->set_session_id(session.id.value);
  out->set_pid(session.spec.pid);
  out->set_uid(session.spec.user.uid);
  out->set_gid(session.spec.user.gid);
  out->set_user(UserText(users, session.spec.user.uid, session.spec.user.realm));
  out->set_realm(session.spec.user.realm);
  out->set_program(session.spec.program);
  out->set_client_version(session.spec.client_version);
  out->set_tenant(session.spec.tenant.name);
  out->set_lease_count(session.owned);
  out->set_open_count(session.open);
  out->set_device_bytes(session.device_bytes);
  out->set_host_bytes(session.host_bytes);
  out->set_age_ms(Milliseconds(BootClock::now() - session.created));
  out->set_connected(session.connected);
}

void ToProto(const broker::Event& event, v1::Event* out) {
  using Type = broker::Event::Type;
  switch (event.type) {
    case Type::kGranted:
      out->set_type(v1::Event::TYPE_GRANTED);
      break;
    case Type::kReleased:
      out->set_type(v1::Event::TYPE_RELEASED);
      break;
    case Type::kOwnerGone:
      out->set_type(v1::Event::TYPE_OWNER_GONE);
      break;
    case Type::kRevoked:
      out->set_type(v1::Event::TYPE_REVOKED);
      break;
    case Type::kExpired:
      out->set_type(v1::Event::TYPE_EXPIRED);
      break;
    case Type::kGpuState:
      out->set_type(v1::Event::TYPE_GPU_STATE);
      break;
    case Type::kStopping:
      out->set_type(v1::Event::TYPE_STOPPING);
      break;
    case Type::kLostEvents:
      out->set_type(v1::Event::TYPE_LOST_EVENTS);
      break;
    case Type::kReady:
      out->set_type(v1::Event::TYPE_READY);
      break;
    case Type::kResized:
      out->set_type(v1::Event::TYPE_RESIZED);
      break;
    case Type::kSuspending:
      out->set_type(v1::Event::TYPE_SUSPENDING);
      break;
    case Type::kResumed:
      out->set_type(v1::Event::TYPE_RESUMED);
      break;
    case Type::kSealed:
      out->set_type(v1::Event::TYPE_SEALED);
      break;
    case Type::kDeviceLost:
      out->set_type(v1::Event::TYPE_DEVICE_LOST);
      break;
    case Type::kSessionEnded:  // the stream's status says it
      break;
  }
  out->set_sequence(event.sequence);
  out->set_lease_id(event.lease_id);
  out->set_name(event.name);
  out->set_gpu_uuid(event.gpu_uuid);
  out->set_message(event.message);
}

}  // namespace gpulease::rpc
