// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "client/sdk/src/conversion.h"
#include "client/sdk/src/exception.h"
#include "client/sdk/src/pending_record.h"

namespace gpulease {
namespace {

// An Open that met the lease's closing in another thread begins anew; more often is no accident.
constexpr int kMaxOpens = 100;

const std::shared_ptr<Session>& Use(const std::shared_ptr<Session>& session) {
  if (!session) {
    throw Exception(ErrorCode::kFailedPrecondition, ErrorReason::kUnspecified,
                    "this Client was moved from");
  }
  OrThrow(session->ok());
  return session;
}

std::shared_ptr<LeaseRecord> OpenRecord(const std::shared_ptr<Session>& session,
                                        const wire::OpenRequest& request, Access access) {
  for (int attempt = 0; attempt < kMaxOpens; ++attempt) {
    HandOver hand_over(session, false);
    auto reply =
        OrThrow(hand_over.Call<wire::OpenMethod>(request, {.deadline = session->CallDeadline()}));
    if (!reply.lease) {
      Throw(MakeError(Code::kInternal, Reason::kUnspecified, "the daemon opened no lease"));
    }
    std::vector<HandedLease> handed = OrThrow(hand_over.Collect({&*reply.lease, 1}));
    auto record = LeaseRecord::Make(session, hand_over.epoch(), std::move(*reply.lease),
                                    std::move(handed.front()), false, access);
    if (record) return record;
  }
  Throw(MakeError(Code::kAborted, Reason::kUnspecified,
                  "the lease is being closed by another thread again and again"));
}

// The pieces of one request, granted within its own `wait`.
std::vector<std::shared_ptr<LeaseRecord>> AllocateRecords(const std::shared_ptr<Session>& session,
                                                          std::span<const AllocateOptions> options,
                                                          std::chrono::milliseconds wait) {
  auto pending = OrThrow(PendingRecord::Request(session, options, wait));
  // The daemon ends the wait; should it not, it is ended here.
  auto records = OrThrow(pending->Wait(wait + session->options().call_timeout));
  if (records.empty()) {
    Throw(MakeError(Code::kDeadlineExceeded, Reason::kWaitOver,
                    "the memory did not become free within the wait"));
  }
  return records;
}

}  // namespace

inline namespace abi_v1 {

Client::Client(const ClientOptions& options) : session_(OrThrow(Session::Connect(options))) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Lease Client::Allocate(const AllocateOptions& options) {
  return Lease(AllocateRecords(Use(session_), {&options, 1}, options.wait).front());
}

std::vector<Lease> Client::AllocateMany(std::span<const AllocateOptions> options,
                                        std::chrono::milliseconds wait) {
  std::vector<Lease> leases;
  for (auto& record : AllocateRecords(Use(session_), options, wait)) {
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
  request.access = AccessOf(access);
  return Lease(OpenRecord(Use(session_), request, access));
}

Lease Client::Open(std::uint64_t lease_id, Access access) {
  wire::OpenRequest request;
  request.lease_id = lease_id;
  request.access = AccessOf(access);
  return Lease(OpenRecord(Use(session_), request, access));
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
