// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/lease_service.h"

#include "daemon/rpc/await_call.h"
#include "daemon/rpc/watch_call.h"

namespace gpulease::rpc {

using ledger::LeaseId;
using ledger::SessionId;

namespace {

// The lease that a request names, by id or by name, of those that the peer may see.
template <typename Request>
Result<LeaseId> NamedBy(const Services& services, const peers::Peer& peer, const Request& request) {
  if (request.lease_case() == Request::kLeaseId) return LeaseId{request.lease_id()};
  const Result<NamedLease> named = ToNamedLease(request.name(), peer, services.users);
  // That there is no such user is no more than that there is no such lease.
  if (!named.ok())
    return named.error().reason == Reason::kNotOpenable ? broker::NotVisible() : named.error();
  return services.broker.FindByName(peer, named->owner, named->name);
}

struct AwaitMethod {
  using Request = v1::AwaitRequest;
  using Response = v1::AllocateResponse;
  using Answer = broker::Grant;
  static constexpr auto kRequest = &v1::LeaseService::AsyncService::RequestAwait;
  static Result<std::uint64_t> Ask(const Services& services, const peers::Peer& peer,
                                   const Request& request,
                                   std::function<void(Result<Answer>)> done) {
    return services.broker.Await(peer, SessionId{request.session_id()}, request.push_tag(),
                                 LeaseId{request.lease_id()}, std::move(done));
  }
  static void Cancel(broker::Broker& broker, std::uint64_t ticket) { broker.CancelAwait(ticket); }
  static void Fill(const Answer& grant, UserNames& users, Response* response) {
    ToProto(grant, users, response);
  }
};

struct AwaitSealedMethod {
  using Request = v1::AwaitSealedRequest;
  using Response = v1::AwaitSealedResponse;
  using Answer = broker::LeaseView;
  static constexpr auto kRequest = &v1::LeaseService::AsyncService::RequestAwaitSealed;
  static Result<std::uint64_t> Ask(const Services& services, const peers::Peer& peer,
                                   const Request& request,
                                   std::function<void(Result<Answer>)> done) {
    const Result<LeaseId> lease = NamedBy(services, peer, request);
    if (!lease.ok()) return lease.error();
    return services.broker.AwaitSealed(peer, *lease, std::move(done));
  }
  static void Cancel(broker::Broker& broker, std::uint64_t ticket) {
    broker.CancelAwaitSealed(ticket);
  }
  static void Fill(const Answer& view, UserNames& users, Response* response) {
    ToProto(view, users, response->mutable_lease());
  }
};

}  // namespace

void LeaseService::Listen(grpc::ServerCompletionQueue& queue) {
  using Async = v1::LeaseService::AsyncService;
  // A handler of ours as gRPC's, with the peer looked up.
  const auto with_peer = [this](auto method) {
    return [this, method](grpc::ServerContext& context, const auto& request, auto& response) {
      return Serve(services_, context, [&](const peers::Peer& peer) {
        return (this->*method)(peer, request, response);
      });
    };
  };
  ListenUnary(services_, async_, queue, &Async::RequestAllocate,
              with_peer(&LeaseService::Allocate));
  ListenUnary(services_, async_, queue, &Async::RequestOpen, with_peer(&LeaseService::Open));
  ListenUnary(services_, async_, queue, &Async::RequestClose, with_peer(&LeaseService::Close));
  ListenUnary(services_, async_, queue, &Async::RequestRelease, with_peer(&LeaseService::Release));
  ListenUnary(services_, async_, queue, &Async::RequestGetLease,
              with_peer(&LeaseService::GetLease));
  ListenUnary(services_, async_, queue, &Async::RequestListLeases,
              with_peer(&LeaseService::ListLeases));
  ListenUnary(services_, async_, queue, &Async::RequestSeal, with_peer(&LeaseService::Seal));
  ListenUnary(services_, async_, queue, &Async::RequestClaim, with_peer(&LeaseService::Claim));
  ListenUnary(services_, async_, queue, &Async::RequestGetDirectory,
              with_peer(&LeaseService::GetDirectory));
  ListenUnary(services_, async_, queue, &Async::RequestResize, with_peer(&LeaseService::Resize));
  ListenUnary(services_, async_, queue, &Async::RequestRefresh, with_peer(&LeaseService::Refresh));
  ListenUnary(services_, async_, queue, &Async::RequestSuspend, with_peer(&LeaseService::Suspend));
  ListenUnary(services_, async_, queue, &Async::RequestResume, with_peer(&LeaseService::Resume));
  AwaitCall<AwaitMethod>::Listen(services_, async_, queue);
  AwaitCall<AwaitSealedMethod>::Listen(services_, async_, queue);
  WatchCall::Listen(services_, async_, queue);
}

Status LeaseService::Allocate(const peers::Peer& peer, const v1::AllocateRequest& request,
                              v1::AllocateResponse& response) {
  Result<ledger::AllocateCommand> command = ToCommand(request, peer, services_.broker);
  if (!command.ok()) return std::move(command).error();
  Result<broker::Grant> grant = services_.broker.Allocate(peer, request.push_tag(), *command);
  if (!grant.ok()) return std::move(grant).error();
  ToProto(*grant, services_.users, &response);
  return {};
}

Status LeaseService::Open(const peers::Peer& peer, const v1::OpenRequest& request,
                          v1::OpenResponse& response) {
  const Result<ledger::Access> access = ToAccess(request.access());
  if (!access.ok()) return access.error();
  const SessionId session{request.session_id()};
  Result<broker::LeaseView> view = broker::LeaseView();
  if (request.lease_case() == v1::OpenRequest::kLeaseId) {
    view = services_.broker.Open(peer, session, request.push_tag(), LeaseId{request.lease_id()},
                                 *access);
  } else {
    const Result<NamedLease> named = ToNamedLease(request.name(), peer, services_.users);
    if (!named.ok()) return named.error();
    view = services_.broker.OpenByName(peer, session, request.push_tag(), named->owner, named->name,
                                       *access);
  }
  if (!view.ok()) return std::move(view).error();
  ToProto(*view, services_.users, response.mutable_lease());
  return {};
}

Status LeaseService::Close(const peers::Peer& peer, const v1::CloseRequest& request,
                           v1::CloseResponse&) {
  return services_.broker.Close(peer, SessionId{request.session_id()}, LeaseId{request.lease_id()});
}

Status LeaseService::Release(const peers::Peer& peer, const v1::ReleaseRequest& request,
                             v1::ReleaseResponse& response) {
  const Result<ledger::Released> released = services_.broker.Release(
      peer, SessionId{request.session_id()}, LeaseId{request.lease_id()}, request.force());
  if (!released.ok()) return released.error();
  response.set_state(ToProto(released->state, false));
  response.set_holders(released->holders);
  return {};
}

Status LeaseService::GetLease(const peers::Peer& peer, const v1::GetLeaseRequest& request,
                              v1::GetLeaseResponse& response) {
  const Result<LeaseId> lease = NamedBy(services_, peer, request);
  if (!lease.ok()) return lease.error();
  Result<broker::LeaseView> view = services_.broker.GetLease(peer, *lease);
  if (!view.ok()) return std::move(view).error();
  ToProto(*view, services_.users, response.mutable_lease());
  return {};
}

Status LeaseService::Seal(const peers::Peer& peer, const v1::SealRequest& request,
                          v1::SealResponse& response) {
  GPULEASE_RETURN_IF_ERROR(CheckContentTag(request.content_tag()));
  const SessionId session{request.session_id()};
  const LeaseId lease{request.lease_id()};
  std::shared_ptr<const std::string> directory;
  if (request.directory().entries_size() > 0) {
    const Result<broker::LeaseView> view = services_.broker.GetLease(peer, lease);
    if (!view.ok()) return view.error();
    Result<std::shared_ptr<const std::string>> checked =
        ToDirectory(request.directory(), view->lease.size);
    if (!checked.ok()) return std::move(checked).error();
    directory = std::move(*checked);
  }
  Result<broker::LeaseView> view =
      services_.broker.Seal(peer, session, lease, request.content_tag(), std::move(directory));
  if (!view.ok()) return std::move(view).error();
  ToProto(*view, services_.users, response.mutable_lease());
  return {};
}

Status LeaseService::Claim(const peers::Peer& peer, const v1::ClaimRequest& request,
                           v1::ClaimResponse& response) {
  const Result<LeaseId> lease = NamedBy(services_, peer, request);
  if (!lease.ok()) return lease.error();
  Result<broker::LeaseView> view =
      services_.broker.Claim(peer, SessionId{request.session_id()}, request.push_tag(), *lease);
  if (!view.ok()) return std::move(view).error();
  ToProto(*view, services_.users, response.mutable_lease());
  return {};
}

Status LeaseService::Resize(const peers::Peer& peer, const v1::ResizeRequest& request,
                            v1::ResizeResponse& response) {
  const Result<ledger::ResizeCommand> command = ToCommand(request);
  if (!command.ok()) return command.error();
  Result<broker::ResizeView> view = services_.broker.Resize(peer, request.push_tag(), *command);
  if (!view.ok()) return std::move(view).error();
  ToProto(*view, services_.users, &response);
  return {};
}

Status LeaseService::Refresh(const peers::Peer& peer, const v1::RefreshRequest& request,
                             v1::RefreshResponse& response) {
  Result<broker::ResizeView> view = services_.broker.Refresh(
      peer, SessionId{request.session_id()}, request.push_tag(), LeaseId{request.lease_id()},
      request.have_chunks(), request.takes_part());
  if (!view.ok()) return std::move(view).error();
  ToProto(view->lease, services_.users, response.mutable_lease());
  response.set_open_chunks(view->open_chunks);
  return {};
}

Status LeaseService::Suspend(const peers::Peer& peer, const v1::SuspendRequest& request,
                             v1::SuspendResponse& response) {
  Result<broker::ResizeView> view = services_.broker.Suspend(
      peer, SessionId{request.session_id()}, LeaseId{request.lease_id()}, request.have_chunks());
  if (!view.ok()) return std::move(view).error();
  ToProto(*view, services_.users, &response);
  return {};
}

Status LeaseService::Resume(const peers::Peer& peer, const v1::ResumeRequest& request,
                            v1::ResumeResponse& response) {
  const Result<ledger::ResumeCommand> command = ToCommand(request);
  if (!command.ok()) return command.error();
  Result<broker::ResizeView> view = services_.broker.Resume(peer, request.push_tag(), *command);
  if (!view.ok()) return std::move(view).error();
  ToProto(*view, services_.users, &response);
  return {};
}

Status LeaseService::GetDirectory(const peers::Peer& peer, const v1::GetDirectoryRequest& request,
                                  v1::GetDirectoryResponse& response) {
  const Result<LeaseId> lease = NamedBy(services_, peer, request);
  if (!lease.ok()) return lease.error();
  const Result<broker::LeaseView> view = services_.broker.GetLease(peer, *lease);
  if (!view.ok()) return view.error();
  if (!view->lease.directory) {
    return MakeError(Code::kNotFound, Reason::kUnspecified,
                     "lease " + std::to_string(lease->value) + " has no directory");
  }
  response.set_lease_id(lease->value);
  response.set_generation(view->lease.generation);
  response.set_content_tag(view->lease.content_tag);
  if (!response.mutable_directory()->ParseFromString(*view->lease.directory))
    return MakeError(Code::kInternal, Reason::kUnspecified, "the directory cannot be read");
  return {};
}

Status LeaseService::ListLeases(const peers::Peer& peer, const v1::ListLeasesRequest& request,
                                v1::ListLeasesResponse& response) {
  const Result<std::uint64_t> after = ToPageStart(request.page_token());
  if (!after.ok()) return after.error();
  const std::size_t most = ToPageSize(request.page_size());
  const std::vector<broker::LeaseView> views =
      services_.broker.ListLeases(peer, LeaseId{*after}, most, [&](const broker::LeaseView& view) {
        return (request.gpu_uuid().empty() || view.gpu_uuid == request.gpu_uuid()) &&
               (!request.has_uid() || view.lease.uid == request.uid()) &&
               (!request.orphans() || ledger::IsOrphan(view.lease));
      });
  for (const broker::LeaseView& view : views) ToProto(view, services_.users, response.add_leases());
  if (views.size() == most)
    response.set_next_page_token(std::to_string(views.back().lease.id.value));
  return {};
}

}  // namespace gpulease::rpc
