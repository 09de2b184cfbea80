// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/fake_node.h"

#include <cstdint>

#include "base/bytes.h"
#include "gpulease/v1/error.pb.h"

namespace gpulease::golden {
namespace {

constexpr const char* kFirstGpu = "GPU-3f2a1b2c-0000-4000-8000-000000000001";
constexpr const char* kSecondGpu = "GPU-77d0aa10-0000-4000-8000-000000000002";

void FillGpus(v1::GetNodeResponse& node, bool idle) {
  v1::Gpu& first = *node.add_gpus();
  first.set_uuid(kFirstGpu);
  first.set_name("NVIDIA H200");
  first.set_state(v1::GPU_STATE_READY);
  v1::MemoryUse& use = *first.mutable_memory();
  use.set_total_bytes(139 * kGiB);
  use.set_free_bytes(139 * kGiB);
  v1::GpuCapabilities& capabilities = *first.mutable_capabilities();
  capabilities.set_virtual_memory(true);
  capabilities.set_unified_addressing(true);
  capabilities.set_posix_fd_export(true);
  capabilities.add_peer_uuids(kSecondGpu);
  capabilities.set_compute_mode("default");
  capabilities.set_compute_capability_major(9);
  capabilities.set_granularity_bytes(2 * kMiB);
  first.set_numa_node(0);
  first.set_pci_bus_id("00000000:19:00.0");
  first.set_utilization_percent(idle ? 0 : 83);
  if (idle) return;
  use.set_leased_bytes(60 * kGiB);
  use.set_offered_bytes(4 * kGiB);
  use.set_releasing_bytes(512 * kMiB);
  use.set_outside_bytes(520 * kMiB);
  use.set_free_bytes(139 * kGiB - 60 * kGiB - 4 * kGiB - 512 * kMiB - 520 * kMiB);
  use.set_lease_count(3);
  use.set_queue_length(1);

  v1::Gpu& second = *node.add_gpus();
  second.CopyFrom(first);
  second.set_uuid(kSecondGpu);
  second.set_state(v1::GPU_STATE_LOST);
  second.set_message("the driver says GPU_IS_LOST (Xid 79)");
  second.set_numa_node(1);
  second.set_pci_bus_id("00000000:3B:00.0");
  second.set_utilization_percent(-1);
  v1::MemoryUse& lost = *second.mutable_memory();
  lost.Clear();
  lost.set_total_bytes(139 * kGiB);
  lost.set_unconfirmed_bytes(3 * kGiB);
  lost.set_quarantined_bytes(16 * kGiB);
  lost.set_free_bytes(120 * kGiB);
  lost.set_lease_count(2);
  v1::Suspect& suspect = *second.add_suspects();
  suspect.set_pid(4242);
  suspect.set_program("pt_data_worker");
  suspect.set_why("forked child of pid 4211, which is dead");
}

void FillTenants(v1::GetNodeResponse& node) {
  v1::Tenant& research = *node.add_tenants();
  research.set_name("research");
  research.set_device_bytes(64 * kGiB);
  research.set_device_limit_bytes(96 * kGiB);
  research.set_host_bytes(kGiB);
  research.set_lease_count(4);
  research.set_session_count(2);
  v1::Tenant& bob = *node.add_tenants();
  bob.set_name("bob");
  bob.set_lease_count(1);
  bob.set_session_count(1);
}

v1::Lease DeviceLease(std::uint64_t id, v1::LeaseState state, std::uint64_t size) {
  v1::Lease lease;
  lease.set_lease_id(id);
  lease.set_generation(1);
  lease.set_kind(v1::MEMORY_KIND_DEVICE);
  lease.set_state(state);
  lease.set_requested_bytes(size);
  lease.set_size_bytes(size);
  lease.set_alignment_bytes(2 * kMiB);
  lease.set_gpu_uuid(kFirstGpu);
  lease.set_owner("alice");
  lease.set_uid(1000);
  lease.set_gid(1000);
  lease.set_mode(0600);
  lease.set_tenant("research");
  lease.add_chunks()->set_size_bytes(size);
  lease.set_age_ms(90'500);
  return lease;
}

void AddHolder(v1::Lease& lease, std::int32_t pid, std::uint32_t uid, const char* program,
               v1::Access access, bool owner) {
  v1::Holder& holder = *lease.add_holders();
  holder.set_session_id(4000000000000000 + static_cast<std::uint64_t>(pid));
  holder.set_pid(pid);
  holder.set_uid(uid);
  holder.set_program(program);
  holder.set_access(access);
  holder.set_owner(owner);
}

std::vector<v1::Lease> Leases() {
  std::vector<v1::Lease> leases;
  v1::Lease weights = DeviceLease(17, v1::LEASE_STATE_LEASED, 60 * kGiB);
  weights.set_name("weights");
  weights.set_mode(0640);
  weights.set_requested_bytes(60 * kGiB - 12345);
  weights.clear_chunks();
  for (int i = 0; i < 8; ++i) weights.add_chunks()->set_size_bytes(i < 7 ? 8 * kGiB : 4 * kGiB);
  (*weights.mutable_labels())["job"] = "llm \"70b\"";
  (*weights.mutable_labels())["team"] = "search";
  weights.set_sealed(true);
  weights.set_content_tag("sha256:9f86d081");
  weights.set_persistent(true);
  AddHolder(weights, 4211, 1000, "server", v1::ACCESS_READ_WRITE, true);
  AddHolder(weights, 5001, 1001, "python3 \033[31mx", v1::ACCESS_READ_ONLY, false);
  weights.set_age_ms(3 * 86'400'000LL + 4 * 3'600'000 + 59'000);
  leases.push_back(weights);

  v1::Lease offered = DeviceLease(18, v1::LEASE_STATE_OFFERED, 4 * kGiB);
  offered.set_age_ms(12);
  leases.push_back(offered);

  v1::Lease queued = DeviceLease(19, v1::LEASE_STATE_QUEUED, 90 * kGiB);
  queued.set_owner("bob");
  queued.set_uid(1001);
  queued.set_tenant("bob");
  queued.clear_gpu_uuid();
  queued.clear_chunks();
  queued.set_queue_position(1);
  v1::Blocker& blocker = *queued.add_blockers();
  blocker.set_lease_id(17);
  blocker.set_pid(4211);
  blocker.set_uid(1000);
  blocker.set_size_bytes(60 * kGiB);
  queued.set_age_ms(5'000);
  leases.push_back(queued);

  v1::Lease staging = DeviceLease(20, v1::LEASE_STATE_LEASED, kGiB);
  staging.set_kind(v1::MEMORY_KIND_HOST);
  staging.clear_gpu_uuid();
  staging.set_numa_node(1);
  staging.set_page_size(v1::PAGE_SIZE_HUGE);
  staging.set_name("staging");
  staging.set_orphan(true);
  staging.set_linger_ms(600'000);
  staging.set_ends_in_ms(90'000);
  leases.push_back(staging);

  v1::Lease quarantined = DeviceLease(21, v1::LEASE_STATE_QUARANTINED, 16 * kGiB);
  quarantined.set_gpu_uuid(kSecondGpu);
  quarantined.set_ipc(true);
  leases.push_back(quarantined);

  v1::Lease cache = DeviceLease(22, v1::LEASE_STATE_LEASED, 8 * kGiB);
  cache.set_name("cache");
  cache.set_reserved_bytes(64 * kGiB);
  cache.set_target_bytes(24 * kGiB);
  cache.set_queue_position(2);
  *cache.add_blockers() = blocker;
  leases.push_back(cache);

  v1::Lease paused = DeviceLease(23, v1::LEASE_STATE_LEASED, 0);
  paused.set_name("paused");
  paused.clear_chunks();
  paused.set_requested_bytes(16 * kGiB);
  paused.set_residence(v1::RESIDENCE_SUSPENDED);
  paused.set_suspended_bytes(16 * kGiB);
  leases.push_back(paused);
  return leases;
}

grpc::Status Failure(grpc::StatusCode code, const std::string& message, v1::Reason reason) {
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  if (reason == v1::REASON_TENANT_LIMIT) {
    detail.set_requested_bytes(60 * kGiB);
    detail.set_available_bytes(32 * kGiB);
    detail.set_limit_bytes(96 * kGiB);
    for (std::uint64_t id : {17, 18}) {
      v1::Blocker& blocker = *detail.add_blockers();
      blocker.set_lease_id(id);
      blocker.set_size_bytes(id == 17 ? 60 * kGiB : 4 * kGiB);
      if (id == 17) {
        blocker.set_pid(4211);
        blocker.set_uid(1000);
      }
    }
  }
  v1::ErrorStatus envelope;
  envelope.set_code(code);
  envelope.set_message(message);
  envelope.add_details()->PackFrom(detail);
  return {code, message, envelope.SerializeAsString()};
}

}  // namespace

grpc::Status FakeNodeService::GetNode(grpc::ServerContext*, const v1::GetNodeRequest*,
                                      v1::GetNodeResponse* response) {
  response->set_version("0.1.0");
  response->set_instance("00112233445566778899aabbccddeeff");
  response->set_uptime_ms(idle_ ? 4'200 : 273'600'000);
  response->set_simulated(idle_);
  response->set_driver_version("580.95.05");
  response->set_resident_bytes(24 * kMiB);
  response->mutable_keeper()->set_connected(true);
  response->mutable_keeper()->set_set_aside(idle_ ? 0 : 1);
  response->set_descriptors_limit(20'000);
  response->set_descriptors_used(idle_ ? 12 : 18'500);
  FillGpus(*response, idle_);
  v1::HostMemory& host = *response->add_host();
  host.mutable_memory()->set_total_bytes(1024 * kGiB);
  host.mutable_memory()->set_free_bytes(idle_ ? 1024 * kGiB : 1023 * kGiB);
  if (idle_) return grpc::Status::OK;
  host.set_numa_node(1);
  host.mutable_memory()->set_leased_bytes(kGiB);
  host.mutable_memory()->set_lease_count(1);
  host.set_huge_page_free_bytes(8 * kGiB);
  response->set_session_count(3);
  response->set_lease_count(5);
  FillTenants(*response);
  return grpc::Status::OK;
}

grpc::Status FakeNodeService::GetBudget(grpc::ServerContext*, const v1::GetBudgetRequest*,
                                        v1::GetBudgetResponse* response) {
  response->set_tenant("research");
  response->set_lasting_bytes(60 * kGiB);
  response->set_lasting_left_bytes(4 * kGiB);
  v1::Budget& gpu = *response->add_budgets();
  gpu.set_kind(v1::MEMORY_KIND_DEVICE);
  gpu.set_gpu_uuid(kFirstGpu);
  gpu.set_leasable_bytes(32 * kGiB);
  gpu.set_free_bytes(75 * kGiB);
  gpu.set_mine_bytes(64 * kGiB);
  gpu.set_tenant_left_bytes(32 * kGiB);
  v1::Blocker& holder = *gpu.add_holders();
  holder.set_lease_id(17);
  holder.set_pid(4211);
  holder.set_uid(1000);
  holder.set_size_bytes(60 * kGiB);
  v1::Budget& host = *response->add_budgets();
  host.set_kind(v1::MEMORY_KIND_HOST);
  host.set_numa_node(1);
  host.set_free_bytes(1023 * kGiB);
  host.set_tenant_left_bytes(~std::uint64_t{0});
  host.set_waiting(1);
  host.set_message("an earlier request waits for it");
  return grpc::Status::OK;
}

grpc::Status FakeNodeService::ListSessions(grpc::ServerContext*,
                                           const v1::ListSessionsRequest* request,
                                           v1::ListSessionsResponse* response) {
  if (idle_) return grpc::Status::OK;
  v1::Session& session = *response->add_sessions();
  session.set_client_version("0.1.0");
  if (request->page_token().empty()) {
    session.set_session_id(4000000000004211);
    session.set_pid(4211);
    session.set_uid(1000);
    session.set_gid(1000);
    session.set_user("alice");
    session.set_program("server");
    session.set_tenant("research");
    session.set_lease_count(2);
    session.set_open_count(2);
    session.set_device_bytes(60 * kGiB);
    session.set_host_bytes(kGiB);
    session.set_age_ms(3'723'000);
    session.set_connected(true);
    response->set_next_page_token("second");
  } else {
    session.set_session_id(4000000000005001);
    session.set_pid(5001);
    session.set_uid(1001);
    session.set_gid(1001);
    const std::string realm =
        "/system.slice/"
        "docker-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope";
    session.set_user("bob@" + realm);
    session.set_realm(realm);
    session.set_program("python3");
    session.set_tenant("bob");
    session.set_lease_count(1);
    session.set_open_count(1);
    session.set_age_ms(850);
  }
  return grpc::Status::OK;
}

grpc::Status FakeLeaseService::ListLeases(grpc::ServerContext*,
                                          const v1::ListLeasesRequest* request,
                                          v1::ListLeasesResponse* response) {
  if (idle_) return grpc::Status::OK;
  constexpr std::uint64_t kPage = 2;
  const std::uint64_t after =
      request->page_token().empty() ? 0 : std::stoull(request->page_token());
  for (const v1::Lease& lease : Leases()) {
    if (lease.lease_id() <= after) continue;
    if (!request->gpu_uuid().empty() && lease.gpu_uuid() != request->gpu_uuid()) continue;
    if (request->has_uid() && lease.uid() != request->uid()) continue;
    if (request->orphans() && !lease.orphan()) continue;
    if (static_cast<std::uint64_t>(response->leases_size()) == kPage) {
      response->set_next_page_token(std::to_string(response->leases(kPage - 1).lease_id()));
      break;
    }
    *response->add_leases() = lease;
  }
  return grpc::Status::OK;
}

grpc::Status FakeLeaseService::GetLease(grpc::ServerContext*, const v1::GetLeaseRequest* request,
                                        v1::GetLeaseResponse* response) {
  for (const v1::Lease& lease : Leases()) {
    const bool by_id = request->lease_id() != 0;
    if (by_id ? lease.lease_id() != request->lease_id()
              : lease.name().empty() || lease.owner() + "/" + lease.name() != request->name())
      continue;
    *response->mutable_lease() = lease;
    return grpc::Status::OK;
  }
  const std::string& name = request->name();
  if (name == "denied")
    return Failure(grpc::PERMISSION_DENIED, "lease 'denied' is not yours to see",
                   v1::REASON_NOT_OPENABLE);
  if (name == "stopping")
    return Failure(grpc::UNAVAILABLE, "the daemon is about to stop: retry when it is back",
                   v1::REASON_STOPPING);
  if (name == "broken") return {grpc::UNAVAILABLE, "Socket closed"};
  if (name == "short")
    return Failure(grpc::RESOURCE_EXHAUSTED, "tenant research: asked 60.0 GiB of GPU memory",
                   v1::REASON_TENANT_LIMIT);
  if (name == "internal") return Failure(grpc::INTERNAL, "cuMemCreate: 999", v1::REASON_DRIVER);
  return Failure(grpc::NOT_FOUND, "you have no lease called '" + name + "'",
                 v1::REASON_NOT_OPENABLE);
}

grpc::Status FakeLeaseService::Release(grpc::ServerContext*, const v1::ReleaseRequest* request,
                                       v1::ReleaseResponse* response) {
  const std::lock_guard<std::mutex> lock(mutex_);
  releases_.push_back(*request);
  response->set_state(request->force() ? v1::LEASE_STATE_QUARANTINED : v1::LEASE_STATE_REVOKING);
  response->set_holders(request->force() ? 0 : 2);
  return grpc::Status::OK;
}

std::vector<v1::ReleaseRequest> FakeLeaseService::releases() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return releases_;
}

FakeNode::FakeNode(const std::string& directory, bool idle) : node_(idle), leases_(idle) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + directory + "/gpulease.sock",
                           grpc::InsecureServerCredentials());
  builder.RegisterService(&node_);
  builder.RegisterService(&leases_);
  server_ = builder.BuildAndStart();
}

FakeNode::~FakeNode() { server_->Shutdown(std::chrono::system_clock::now()); }

}  // namespace gpulease::golden
