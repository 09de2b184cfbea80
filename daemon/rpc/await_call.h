// SPDX-License-Identifier: Apache-2.0
//
// AwaitCall: one call in progress that the broker answers later: an Await, an AwaitSealed. It lives
// until gRPC is done with it and the broker has answered.
#pragma once

#include <memory>

#include "base/mutex.h"
#include "daemon/rpc/waiting_call.h"
#include "gpulease/v1/lease.grpc.pb.h"

namespace gpulease::rpc {

// A method is told by: Request, Response, Answer (what the broker gives), kRequest (of the
// generated service), and
//   Result<std::uint64_t> Ask(const Services&, const peers::Peer&, const Request&, done)
//       asks the broker; its ticket, or what is wrong with the request: `done` is not called then;
//   void Cancel(broker::Broker&, std::uint64_t ticket);
//   void Fill(const Answer&, UserNames&, Response*).
template <typename Method>
class AwaitCall final : public WaitingCall {
 public:
  // Serves the next one, and the one after it.
  static void Listen(const Services& services, v1::LeaseService::AsyncService& async,
                     grpc::ServerCompletionQueue& queue) {
    const std::shared_ptr<AwaitCall> call(new AwaitCall(services, async, queue));
    (async.*Method::kRequest)(&call->context_, &call->request_, &call->writer_, &queue, &queue,
                              call->ListenTag());
  }

 private:
  AwaitCall(const Services& services, v1::LeaseService::AsyncService& async,
            grpc::ServerCompletionQueue& queue)
      : WaitingCall(services), async_(async), queue_(queue), writer_(&context_) {}

  void Arrive() override {
    Listen(services_, async_, queue_);
    bool waits = false;
    const grpc::Status refused = Serve(services_, context_, [&](const peers::Peer& peer) -> Status {
      const auto self = std::static_pointer_cast<AwaitCall>(shared_from_this());
      const Result<std::uint64_t> ticket =
          Method::Ask(services_, peer, request_,
                      [self](Result<typename Method::Answer> answer) { self->Answer(answer); });
      if (!ticket.ok()) return ticket.error();
      waits = true;
      bool ended;
      {
        MutexLock lock(mutex_);
        ticket_ = *ticket;
        ended = ended_;
      }
      if (ended) Method::Cancel(services_.broker, *ticket);
      return {};
    });
    if (!waits) Finish(refused);
  }

  void End() override {
    std::uint64_t ticket;
    {
      MutexLock lock(mutex_);
      ended_ = true;
      ticket = ticket_;
    }
    Method::Cancel(services_.broker, ticket);
  }

  void Answer(const Result<typename Method::Answer>& answer) {
    if (!answer.ok()) return Finish(ToGrpc(answer.error()));
    Method::Fill(*answer, services_.users, &response_);
    Finish(grpc::Status::OK);
  }

  void Finish(const grpc::Status& status) {
    Tag* const tag = NewTag([](WaitingCall&, bool) {});
    if (status.ok()) {
      writer_.Finish(response_, status, tag);
    } else {
      writer_.FinishWithError(status, tag);
    }
  }

  v1::LeaseService::AsyncService& async_;
  grpc::ServerCompletionQueue& queue_;
  typename Method::Request request_;
  typename Method::Response response_;
  grpc::ServerAsyncResponseWriter<typename Method::Response> writer_;
  Mutex mutex_;
  std::uint64_t ticket_ GPULEASE_GUARDED_BY(mutex_) = 0;
  bool ended_ GPULEASE_GUARDED_BY(mutex_) = false;
};

}  // namespace gpulease::rpc
