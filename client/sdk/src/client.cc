// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "client/sdk/src/conversion.h"
#include "client/sdk/src/exception.h"
#include "client/sdk/src/leasing.h"
#include "client/sdk/src/pending_record.h"

namespace gpulease {
namespace {

const std::shared_ptr<Session>& Use(const std::shared_ptr<Session>& session) {
  if (!session) {
    throw Exception(ErrorCode::kFailedPrecondition, ErrorReason::kUnspecified,
                    "this Client was moved from");
  }
  OrThrow(session->ok());
  return session;
}

}  // namespace

inline namespace abi_v1 {

Client::Client(const ClientOptions& options) : session_(OrThrow(Session::Connect(options))) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Lease Client::Allocate(const AllocateOptions& options) {
  return Lease(OrThrow(AllocateRecords(Use(session_), {&options, 1}, options.wait)).front());
}

std::vector<Lease> Client::AllocateMany(std::span<const AllocateOptions> options,
                                        std::chrono::milliseconds wait) {
  std::vector<Lease> leases;
  for (auto& record : OrThrow(AllocateRecords(Use(session_), options, wait))) {
    leases.push_back(Lease(std::move(record)));
  }
  return leases;
}

PendingLease Client::Request(const AllocateOptions& options) {
  return PendingLease(OrThrow(PendingRecord::Request(Use(session_), {&options, 1}, options.wait)));
}

Lease Client::Open(std::string_view name, Access access) {
  wire::OpenRequest request;
  request.name = std::string(name);
  return Lease(OrThrow(OpenRecord(Use(session_), std::move(request), access)));
}

Lease Client::Open(std::uint64_t lease_id, Access access) {
  wire::OpenRequest request;
  request.lease_id = lease_id;
  return Lease(OrThrow(OpenRecord(Use(session_), std::move(request), access)));
}

NodeStatus Client::Node() {
  const std::shared_ptr<Session>& session = Use(session_);
  NodeStatus status = StatusOf(
      OrThrow(session->Call<wire::GetNodeMethod>({}, {.deadline = session->CallDeadline()})));
  if (!session->options().use_cuda || status.gpus.empty()) return status;
  auto process = CudaProcess::Get(DriverOf(session->link().handles->welcome()));
  if (!process.ok()) return status;
  for (GpuStatus& gpu : status.gpus) gpu.ordinal = (*process)->Ordinal(gpu.uuid);
  return status;
}

std::vector<LeaseStatus> Client::Leases() {
  const std::shared_ptr<Session>& session = Use(session_);
  std::vector<LeaseStatus> leases;
  wire::ListLeasesRequest request;
  do {
    auto page = OrThrow(
        session->Call<wire::ListLeasesMethod>(request, {.deadline = session->CallDeadline()}));
    for (const wire::Lease& lease : page.leases) leases.push_back(StatusOf(lease));
    request.page_token = page.next_page_token;
  } while (!request.page_token.empty());
  return leases;
}

int Client::EventDescriptor() { return OrThrow(Use(session_)->EventDescriptor()); }

std::optional<Event> Client::NextEvent(std::chrono::milliseconds timeout) {
  auto event = OrThrow(Use(session_)->NextEvent(timeout));
  if (!event) return std::nullopt;
  return EventOf(std::move(*event));
}

std::uint64_t Client::session_id() const { return Use(session_)->link().session_id; }

std::string Client::instance() const { return Use(session_)->link().instance; }

std::string Client::daemon_version() const {
  return Use(session_)->link().handles->welcome().daemon_version;
}

}  // namespace abi_v1
}  // namespace gpulease
