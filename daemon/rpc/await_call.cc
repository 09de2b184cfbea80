// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/await_call.h"

namespace gpulease::rpc {

grpc::ServerUnaryReactor* AwaitCall::Start(const Services& services,
                                           grpc::CallbackServerContext& context,
                                           const v1::AwaitRequest& request,
                                           v1::AllocateResponse& response) {
  const std::shared_ptr<AwaitCall> call(new AwaitCall(services));
  call->self_ = call;
  bool waits = false;
  const grpc::Status refused = Serve(services, context, [&](const peers::Peer& peer) -> Status {
    waits = true;
    const std::uint64_t ticket = services.broker.Await(
        peer, ledger::SessionId{request.session_id()}, request.push_tag(),
        ledger::LeaseId{request.lease_id()}, [call, &response](Result<broker::Grant> grant) {
          if (!grant.ok()) return call->Finish(ToGrpc(grant.error()));
          ToProto(*grant, call->services_.users, &response);
          call->Finish(grpc::Status::OK);
        });
    bool cancelled;
    {
      MutexLock lock(call->mutex_);
      call->ticket_ = ticket;
      cancelled = call->cancelled_;
    }
    if (cancelled) services.broker.CancelAwait(ticket);
    return {};
  });
  if (!waits) call->Finish(refused);
  return call.get();
}

void AwaitCall::OnCancel() {
  std::uint64_t ticket;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    ticket = ticket_;
  }
  services_.broker.CancelAwait(ticket);
}

void AwaitCall::OnDone() { const std::shared_ptr<AwaitCall> last = std::move(self_); }

}  // namespace gpulease::rpc
