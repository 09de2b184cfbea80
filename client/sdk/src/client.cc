// SPDX-License-Identifier: Apache-2.0
#include <chrono>
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

Result<std::shared_ptr<LeaseRecord>> OpenNamed(const std::shared_ptr<Session>& session,
                                               std::string_view name, Access access) {
  wire::OpenRequest request;
  request.name = std::string(name);
  return OpenRecord(session, std::move(request), access);
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
  return Lease(OrThrow(OpenNamed(Use(session_), name, access)));
}

Lease Client::Open(std::uint64_t lease_id, Access access) {
  wire::OpenRequest request;
  request.lease_id = lease_id;
  return Lease(OrThrow(OpenRecord(Use(session_), std::move(request), access)));
}

LoadedLease Client::LoadOrAttach(const AllocateOptions& options,
                                 std::chrono::milliseconds timeout) {
  const std::shared_ptr<Session>& session = Use(session_);
  if (options.name.empty()) {
    Throw(MakeError(Code::kInvalidArgument, Reason::kBadField,
                    "name: what is loaded for others needs one"));
  }
  const bool mine = options.name.find('/') == std::string::npos;
  const Deadline until = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    auto opened = OpenNamed(session, options.name, Access::kReadOnly);
    bool loading = false;
    if (opened.ok()) {
      if ((*opened)->lease().sealed) return {Lease(std::move(*opened)), false};
      // Another thread of this Client fills it.
      loading = (*opened)->lease().loading;
    } else {
      loading = opened.error().reason == Reason::kNotSealed;
    }
    if (opened.ok() && !loading) {
      Throw(MakeError(Code::kFailedPrecondition, Reason::kNotSealed,
                      options.name + " is a lease that nobody is loading: its owner did not get it "
                                     "from LoadOrAttach, and has not sealed it"));
    }
    if (!opened.ok() && opened.error().code == Code::kNotFound && mine) {
      auto made = AllocateRecords(session, {&options, 1}, options.wait, /*loading=*/true);
      if (made.ok()) return {Lease(std::move(made->front())), true};
      // Another was faster.
      if (made.error().reason != Reason::kNameTaken) Throw(std::move(made).error());
    } else if (loading) {
      wire::AwaitSealedRequest request;
      request.name = options.name;
      auto sealed = session->Call<wire::AwaitSealedMethod>(request, {.deadline = until});
      // Over before it was sealed: then this one may be the next to fill it.
      if (!sealed.ok() && sealed.error().code != Code::kAborted &&
          sealed.error().code != Code::kNotFound && sealed.error().code != Code::kDeadlineExceeded)
        Throw(std::move(sealed).error());
    } else {
      Throw(std::move(opened).error());
    }
    if (std::chrono::steady_clock::now() >= until) {
      Throw(MakeError(
          Code::kDeadlineExceeded, Reason::kWaitOver,
          options.name + " was not sealed within " + std::to_string(timeout.count()) + " ms"));
    }
  }
}

Lease Client::Claim(std::string_view name) {
  wire::ClaimRequest request;
  request.name = std::string(name);
  return Lease(OrThrow(ClaimRecord(Use(session_), request)));
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

std::vector<BudgetStatus> Client::Budget() {
  const std::shared_ptr<Session>& session = Use(session_);
  const auto reply =
      OrThrow(session->Call<wire::GetBudgetMethod>({}, {.deadline = session->CallDeadline()}));
  std::vector<BudgetStatus> all;
  for (const wire::Budget& budget : reply.budgets) all.push_back(StatusOf(budget));
  return all;
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
