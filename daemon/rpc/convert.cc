// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/convert.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string_view>

#include "gpulease/v1/error.pb.h"

namespace gpulease::rpc {
namespace {

constexpr std::string_view kNameCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
constexpr std::string_view kKeyCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-";
constexpr int kMostSpecs = 64;
constexpr std::size_t kMostLabels = 16;
constexpr std::size_t kLongestName = 128;
constexpr std::size_t kLongestKey = 63;
constexpr std::size_t kLongestValue = 255;
constexpr std::size_t kLongestRequestId = 64;
constexpr std::size_t kLongestRealm = 1024;  // a cgroup's path
constexpr std::size_t kLongestUuid = 96;     // of a GPU's slice: 80
constexpr std::size_t kMostPageSize = 1000;
constexpr std::uint64_t kLongestWaitMs = 24ull * 3600 * 1000;
constexpr Bytes kLargestAlignment = kGiB;

Error Bad(std::string field, const std::string& what) {
  return MakeError(Code::kInvalidArgument, Reason::kBadField, std::move(field) + ": " + what);
}

bool Consists(std::string_view text, std::string_view characters, std::size_t longest) {
  return !text.empty() && text.size() <= longest &&
         text.find_first_not_of(characters) == std::string_view::npos;
}

// Without what could steer a terminal: C0, DEL, and C1 as UTF-8 writes it (C2 80 to C2 9F).
bool IsPrintable(std::string_view text) {
  unsigned char before = 0;
  return std::none_of(text.begin(), text.end(), [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    const bool steers = byte < 0x20 || byte == 0x7f || (before == 0xc2 && byte < 0xa0);
    before = byte;
    return steers;
  });
}

// The GPU of this UUID, kNoPool for none. Errors: kInvalidArgument/kBadField.
Result<ledger::PoolIndex> FindGpu(const std::string& uuid, const std::string& field,
                                  const broker::Broker& broker) {
  if (uuid.size() > kLongestUuid || !IsPrintable(uuid))
    return Bad(field + "gpu_uuid", "must have at most 96 bytes and no control characters");
  return broker.FindGpu(uuid);
}

std::int64_t Milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

Result<std::vector<ledger::PoolIndex>> HostPools(const v1::AllocationSpec& spec,
                                                 const std::string& field,
                                                 const broker::Broker& broker) {
  std::optional<std::int32_t> node;
  if (spec.has_numa_node()) node = spec.numa_node();
  if (!spec.gpu_uuid().empty()) {
    const Result<ledger::PoolIndex> found = FindGpu(spec.gpu_uuid(), field, broker);
    if (!found.ok()) return found.error();
    const ledger::PoolIndex gpu = *found;
    if (gpu == ledger::kNoPool) {
      return MakeError(Code::kNotFound, Reason::kNoSuchGpu,
                       field + "gpu_uuid: this node has no GPU \"" + spec.gpu_uuid() + "\"");
    }
    // A GPU whose node is unknown is near to all of them.
    if (!node && broker.pools()[gpu].gpu.numa_node >= 0) node = broker.pools()[gpu].gpu.numa_node;
  }
  std::vector<ledger::PoolIndex> pools;
  if (!node) return pools;
  for (ledger::PoolIndex i = 0; i < broker.pools().size(); ++i) {
    const broker::Pool& pool = broker.pools()[i];
    if (pool.spec.kind == ledger::PoolKind::kHost && pool.numa_node == *node) pools.push_back(i);
  }
  if (!pools.empty()) return pools;
  // A GPU may be near to a node without memory: then any will do. One that was asked for by number
  // must exist.
  if (spec.has_numa_node()) {
    return Bad(field + "numa_node",
               "this machine has no memory on NUMA node " + std::to_string(*node));
  }
  return pools;
}

Result<ledger::AllocationSpec> ToSpec(const v1::AllocationSpec& in, const std::string& field,
                                      const peers::Peer& peer, const broker::Broker& broker) {
  ledger::AllocationSpec out;
  if (in.kind() == v1::MEMORY_KIND_DEVICE) {
    out.kind = ledger::PoolKind::kDevice;
    if (in.has_numa_node())
      return Bad(field + "numa_node", "is for host memory; device memory has gpu_uuid");
    if (in.page_size() != v1::PAGE_SIZE_AUTO) return Bad(field + "page_size", "is for host memory");
    if (!in.gpu_uuid().empty()) {
      const Result<ledger::PoolIndex> pool = FindGpu(in.gpu_uuid(), field, broker);
      if (!pool.ok()) return pool.error();
      if (*pool == ledger::kNoPool) {
        return MakeError(Code::kNotFound, Reason::kNoSuchGpu,
                         field + "gpu_uuid: this node has no GPU \"" + in.gpu_uuid() +
                             "\" to lease from; see gpuleasectl gpus");
      }
      out.pools.push_back(*pool);
    }
  } else if (in.kind() == v1::MEMORY_KIND_HOST) {
    out.kind = ledger::PoolKind::kHost;
    Result<std::vector<ledger::PoolIndex>> pools = HostPools(in, field, broker);
    if (!pools.ok()) return std::move(pools).error();
    out.pools = std::move(*pools);
  } else {
    return Bad(field + "kind", "must be MEMORY_KIND_DEVICE or MEMORY_KIND_HOST");
  }
  if (in.size_bytes() == 0) return Bad(field + "size_bytes", "must be at least 1");
  out.size = in.size_bytes();
  const Bytes alignment = in.alignment_bytes();
  if ((alignment & (alignment - 1)) != 0 || alignment > kLargestAlignment) {
    return Bad(field + "alignment_bytes", "must be 0 or a power of two up to 1 GiB");
  }
  out.alignment = alignment;
  switch (in.page_size()) {
    case v1::PAGE_SIZE_AUTO:
      out.page_size = ledger::PageSize::kAuto;
      break;
    case v1::PAGE_SIZE_SMALL:
      out.page_size = ledger::PageSize::kSmall;
      break;
    case v1::PAGE_SIZE_HUGE:
      out.page_size = ledger::PageSize::kHuge;
      break;
    default:
      return Bad(field + "page_size", "must be AUTO, SMALL or HUGE");
  }
  if (!in.name().empty() && !Consists(in.name(), kNameCharacters, kLongestName)) {
    return Bad(field + "name", "must have at most 128 characters of A-Z a-z 0-9 . _ -");
  }
  out.name = in.name();
  if (in.has_mode()) {
    if ((in.mode() & ~0666u) != 0)
      return Bad(field + "mode", "must be made of read and write bits (0666)");
    out.mode = in.mode();
  }
  out.gid = in.has_gid() ? in.gid() : peer.user.gid;
  if (static_cast<std::size_t>(in.labels_size()) > kMostLabels)
    return Bad(field + "labels", "at most 16 are kept");
  for (const auto& [key, value] : in.labels()) {
    if (!Consists(key, kKeyCharacters, kLongestKey)) {
      return Bad(field + "labels", "a key must have 1 to 63 characters of A-Z a-z 0-9 . _ / -");
    }
    if (value.size() > kLongestValue || !IsPrintable(value)) {
      return Bad(field + "labels[" + key + "]",
                 "must have at most 255 bytes and no control characters");
    }
    out.labels[key] = value;
  }
  out.death_notice = in.death_notice();
  return out;
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

}  // namespace

grpc::Status ToGrpc(const Error& error) {
  v1::ErrorDetail detail;
  detail.set_reason(static_cast<v1::Reason>(error.reason));
  detail.set_requested_bytes(error.requested_bytes);
  detail.set_available_bytes(error.available_bytes);
  detail.set_limit_bytes(error.limit_bytes);
  for (const Blocker& blocker : error.blockers) {
    v1::Blocker* const out = detail.add_blockers();
    out->set_lease_id(blocker.lease_id);
    out->set_pid(blocker.pid);
    out->set_uid(blocker.uid);
    out->set_size_bytes(blocker.size_bytes);
  }
  v1::ErrorStatus status;
  status.set_code(static_cast<int>(error.code));
  status.set_message(error.message);
  status.add_details()->PackFrom(detail);
  return grpc::Status(static_cast<grpc::StatusCode>(error.code), error.message,
                      status.SerializeAsString());
}

Result<ledger::AllocateCommand> ToCommand(const v1::AllocateRequest& request,
                                          const peers::Peer& peer, const broker::Broker& broker) {
  ledger::AllocateCommand command;
  command.session = ledger::SessionId{request.session_id()};
  if (request.specs_size() < 1 || request.specs_size() > kMostSpecs) {
    return Bad("specs",
               "1 to 64 are granted together, not " + std::to_string(request.specs_size()));
  }
  if (request.wait_ms() > kLongestWaitMs) return Bad("wait_ms", "at most 24 hours");
  command.wait = std::chrono::milliseconds(request.wait_ms());
  if (!request.request_id().empty() &&
      !Consists(request.request_id(), kNameCharacters, kLongestRequestId)) {
    return Bad("request_id", "must have at most 64 characters of A-Z a-z 0-9 . _ -");
  }
  command.request_id = request.request_id();
  for (int i = 0; i < request.specs_size(); ++i) {
    Result<ledger::AllocationSpec> spec =
        ToSpec(request.specs(i), "specs[" + std::to_string(i) + "].", peer, broker);
    if (!spec.ok()) return std::move(spec).error();
    command.specs.push_back(std::move(*spec));
  }
  return command;
}

Result<ledger::Access> ToAccess(v1::Access access) {
  switch (access) {
    case v1::ACCESS_UNSPECIFIED:
    case v1::ACCESS_READ_WRITE:
      return ledger::Access::kReadWrite;
    case v1::ACCESS_READ_ONLY:
      return ledger::Access::kReadOnly;
    default:
      return Bad("access", "must be ACCESS_READ_ONLY or ACCESS_READ_WRITE");
  }
}

Result<NamedLease> ToNamedLease(const std::string& text, const peers::Peer& peer,
                                UserNames& users) {
  NamedLease result;
  const std::size_t slash = text.rfind('/');  // a realm may have some
  result.owner = peer.user.id();
  result.name = slash == std::string::npos ? text : text.substr(slash + 1);
  if (!Consists(result.name, kNameCharacters, kLongestName)) {
    return Bad(
        "name",
        "must be NAME, USER/NAME or USER@REALM/NAME, NAME with 1 to 128 characters of A-Z a-z "
        "0-9 . _ -");
  }
  if (slash != std::string::npos) {
    const std::size_t at = std::min(text.find('@'), slash);
    const std::string user = text.substr(0, at);
    if (at < slash) result.owner.realm = text.substr(at + 1, slash - at - 1);
    if (result.owner.realm.size() > kLongestRealm || !IsPrintable(result.owner.realm)) {
      return Bad("name", "a REALM has at most 1024 bytes and no control characters");
    }
    if (user.size() > kLongestName || !IsPrintable(user) || user.find('/') != std::string::npos) {
      return Bad("name", "a USER has at most 128 bytes, no control characters and no \"/\"");
    }
    // The user database is asked for names that can be users' alone.
    const std::optional<std::uint32_t> uid =
        Consists(user, kNameCharacters, kLongestName) ? users.IdOf(user) : std::nullopt;
    if (!uid) {
      return MakeError(
          Code::kPermissionDenied, Reason::kNotOpenable,
          "lease " + text + ": there is none, or its owner has not opened it to the caller so");
    }
    result.owner.uid = *uid;
  }
  return result;
}

Result<std::uint64_t> ToPageStart(const std::string& token) {
  if (token.empty()) return std::uint64_t{0};
  std::uint64_t after = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), after);
  if (error != std::errc() || end != token.data() + token.size()) {
    return Bad("page_token", "is none of this daemon's: take next_page_token of the last reply");
  }
  return after;
}

std::size_t ToPageSize(std::uint32_t asked) {
  return asked == 0 ? kMostPageSize : std::min<std::size_t>(asked, kMostPageSize);
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
  out->set_death_notice(lease.death_notice);
  for (const Bytes bytes : lease.chunks) out->add_chunks()->set_size_bytes(bytes);
  for (const broker::HolderView& holder : view.holders) {
    v1::Holder* const to = out->add_holders();
    to->set_session_id(holder.holding.session.value);
    to->set_pid(holder.pid);
    to->set_uid(holder.uid);
    to->set_realm(holder.realm);
    to->set_program(holder.program);
    to->set_access(ToProto(holder.holding.access));
    to->set_owner(holder.owner);
  }
  out->set_age_ms(Milliseconds(BootClock::now() - lease.created));
  out->set_queue_position(view.queue_position);
  for (const Blocker& blocker : view.blockers) {
    v1::Blocker* const to = out->add_blockers();
    to->set_lease_id(blocker.lease_id);
    to->set_pid(blocker.pid);
    to->set_uid(blocker.uid);
    to->set_size_bytes(blocker.size_bytes);
  }
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
