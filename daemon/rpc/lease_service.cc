// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/lease_service.h"

#include "daemon/rpc/await_call.h"
#include "daemon/rpc/watch_call.h"

namespace gpulease::rpc {

using ledger::LeaseId;
using ledger::SessionId;

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
  ListenUnary(async_, queue, &Async::RequestAllocate, with_peer(&LeaseService::Allocate));
  ListenUnary(async_, queue, &Async::RequestOpen, with_peer(&LeaseService::Open));
  ListenUnary(async_, queue, &Async::RequestClose, with_peer(&LeaseService::Close));
  ListenUnary(async_, queue, &Async::RequestRelease, with_peer(&LeaseService::Release));
  ListenUnary(async_, queue, &Async::RequestGetLease, with_peer(&LeaseService::GetLease));
  ListenUnary(async_, queue, &Async::RequestListLeases, with_peer(&LeaseService::ListLeases));
  AwaitCall::Listen(services_, async_, queue);
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
  Result<broker::LeaseView> view = broker::LeaseView();
  if (request.lease_case() == v1::GetLeaseRequest::kLeaseId) {
    view = services_.broker.GetLease(peer, LeaseId{request.lease_id()});
  } else {
    const Result<NamedLease> named = ToNamedLease(request.name(), peer, services_.users);
    // That there is no such user is no more than that there is no such lease.
    if (!named.ok())
      return named.error().reason == Reason::kNotOpenable ? broker::NotVisible() : named.error();
    view = services_.broker.GetLeaseByName(peer, named->owner, named->name);
  }
  if (!view.ok()) return std::move(view).error();
  ToProto(*view, services_.users, response.mutable_lease());
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
               (!request.has_uid() || view.lease.uid == request.uid());
      });
  for (const broker::LeaseView& view : views) ToProto(view, services_.users, response.add_leases());
  if (views.size() == most)
    response.set_next_page_token(std::to_string(views.back().lease.id.value));
  return {};
}

}  // namespace gpulease::rpc
