// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/lease_service.h"

#include "daemon/rpc/await_call.h"
#include "daemon/rpc/watch_call.h"

namespace gpulease::rpc {

using ledger::LeaseId;
using ledger::SessionId;

grpc::Status LeaseService::Allocate(grpc::ServerContext* context,
                                    const v1::AllocateRequest* request,
                                    v1::AllocateResponse* response) {
  return Serve(services_, *context, [&](const peers::Peer& peer) -> Status {
    Result<ledger::AllocateCommand> command = ToCommand(*request, peer, services_.broker);
    if (!command.ok()) return std::move(command).error();
    Result<broker::Grant> grant = services_.broker.Allocate(peer, request->push_tag(), *command);
    if (!grant.ok()) return std::move(grant).error();
    // Who gave up before the answer and cannot ask again by request id would not know that he has
    // it.
    if (context->IsCancelled() && request->request_id().empty()) {
      for (const broker::LeaseView& view : grant->leases) {
        static_cast<void>(
            services_.broker.Release(peer, command->session, view.lease.id, false).ok());
      }
      return MakeError(Code::kCancelled, Reason::kUnspecified,
                       "the caller gave up; nothing is leased");
    }
    ToProto(*grant, services_.users, response);
    return {};
  });
}

grpc::ServerUnaryReactor* LeaseService::Await(grpc::CallbackServerContext* context,
                                              const v1::AwaitRequest* request,
                                              v1::AllocateResponse* response) {
  return AwaitCall::Start(services_, *context, *request, *response);
}

grpc::Status LeaseService::Open(grpc::ServerContext* context, const v1::OpenRequest* request,
                                v1::OpenResponse* response) {
  return Serve(services_, *context, [&](const peers::Peer& peer) -> Status {
    const Result<ledger::Access> access = ToAccess(request->access());
    if (!access.ok()) return access.error();
    const SessionId session{request->session_id()};
    Result<broker::LeaseView> view = broker::LeaseView();
    if (request->lease_case() == v1::OpenRequest::kLeaseId) {
      view = services_.broker.Open(peer, session, request->push_tag(), LeaseId{request->lease_id()},
                                   *access);
    } else {
      const Result<NamedLease> named = ToNamedLease(request->name(), peer, services_.users);
      if (!named.ok()) return named.error();
      view = services_.broker.OpenByName(peer, session, request->push_tag(), named->uid,
                                         named->name, *access);
    }
    if (!view.ok()) return std::move(view).error();
    ToProto(*view, services_.users, response->mutable_lease());
    return {};
  });
}

grpc::Status LeaseService::Close(grpc::ServerContext* context, const v1::CloseRequest* request,
                                 v1::CloseResponse*) {
  return Serve(services_, *context, [&](const peers::Peer& peer) {
    return services_.broker.Close(peer, SessionId{request->session_id()},
                                  LeaseId{request->lease_id()});
  });
}

grpc::Status LeaseService::Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                                   v1::ReleaseResponse* response) {
  return Serve(services_, *context, [&](const peers::Peer& peer) -> Status {
    const Result<ledger::Released> released = services_.broker.Release(
        peer, SessionId{request->session_id()}, LeaseId{request->lease_id()}, request->force());
    if (!released.ok()) return released.error();
    response->set_state(ToProto(released->state, false));
    response->set_holders(released->holders);
    return {};
  });
}

grpc::Status LeaseService::GetLease(grpc::ServerContext* context,
                                    const v1::GetLeaseRequest* request,
                                    v1::GetLeaseResponse* response) {
  return Serve(services_, *context, [&](const peers::Peer& peer) -> Status {
    Result<broker::LeaseView> view = broker::LeaseView();
    if (request->lease_case() == v1::GetLeaseRequest::kLeaseId) {
      view = services_.broker.GetLease(peer, LeaseId{request->lease_id()});
    } else {
      const Result<NamedLease> named = ToNamedLease(request->name(), peer, services_.users);
      if (!named.ok()) return named.error();
      view = services_.broker.GetLeaseByName(peer, named->uid, named->name);
    }
    if (!view.ok()) return std::move(view).error();
    ToProto(*view, services_.users, response->mutable_lease());
    return {};
  });
}

grpc::Status LeaseService::ListLeases(grpc::ServerContext* context,
                                      const v1::ListLeasesRequest* request,
                                      v1::ListLeasesResponse* response) {
  return Serve(services_, *context, [&](const peers::Peer& peer) -> Status {
    const Result<std::uint64_t> after = ToPageStart(request->page_token());
    if (!after.ok()) return after.error();
    const std::size_t most = ToPageSize(request->page_size());
    const std::vector<broker::LeaseView> views = services_.broker.ListLeases(
        peer, LeaseId{*after}, most, [&](const broker::LeaseView& view) {
          return (request->gpu_uuid().empty() || view.gpu_uuid == request->gpu_uuid()) &&
                 (!request->has_uid() || view.lease.uid == request->uid());
        });
    for (const broker::LeaseView& view : views)
      ToProto(view, services_.users, response->add_leases());
    if (views.size() == most)
      response->set_next_page_token(std::to_string(views.back().lease.id.value));
    return {};
  });
}

grpc::ServerWriteReactor<v1::Event>* LeaseService::Watch(grpc::CallbackServerContext* context,
                                                         const v1::WatchRequest* request) {
  return WatchCall::Start(services_, *context, *request);
}

}  // namespace gpulease::rpc
