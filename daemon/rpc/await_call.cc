// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/await_call.h"

namespace gpulease::rpc {

void AwaitCall::Listen(const Services& services, v1::LeaseService::AsyncService& async,
                       grpc::ServerCompletionQueue& queue) {
  const std::shared_ptr<AwaitCall> call(new AwaitCall(services, async, queue));
  async.RequestAwait(&call->context_, &call->request_, &call->writer_, &queue, &queue,
                     call->ListenTag());
}

void AwaitCall::Arrive() {
  Listen(services_, async_, queue_);
  bool waits = false;
  const grpc::Status refused = Serve(services_, context_, [&](const peers::Peer& peer) -> Status {
    waits = true;
    const auto self = std::static_pointer_cast<AwaitCall>(shared_from_this());
    const std::uint64_t ticket = services_.broker.Await(
        peer, ledger::SessionId{request_.session_id()}, request_.push_tag(),
        ledger::LeaseId{request_.lease_id()},
        [self](Result<broker::Grant> grant) { self->Answer(std::move(grant)); });
    bool ended;
    {
      MutexLock lock(mutex_);
      ticket_ = ticket;
      ended = ended_;
    }
    if (ended) services_.broker.CancelAwait(ticket);
    return {};
  });
  if (!waits) Finish(refused);
}

void AwaitCall::Answer(Result<broker::Grant> grant) {
  if (!grant.ok()) return Finish(ToGrpc(grant.error()));
  ToProto(*grant, services_.users, &response_);
  Finish(grpc::Status::OK);
}

void AwaitCall::Finish(const grpc::Status& status) {
  Tag* const tag = NewTag([](WaitingCall&, bool) {});
  if (status.ok()) {
    writer_.Finish(response_, status, tag);
  } else {
    writer_.FinishWithError(status, tag);
  }
}

void AwaitCall::End() {
  std::uint64_t ticket;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    ticket = ticket_;
  }
  services_.broker.CancelAwait(ticket);
}

}  // namespace gpulease::rpc
