// SPDX-License-Identifier: Apache-2.0
//
// What every call needs: the broker, who is calling, and the daemon's instance on the reply.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "daemon/broker/broker.h"
#include "daemon/peers/peer_table.h"
#include "daemon/rpc/call_loop.h"
#include "daemon/rpc/convert.h"
#include "daemon/rpc/live_calls.h"
#include "daemon/rpc/user_names.h"

namespace gpulease::rpc {

struct Services {
  broker::Broker& broker;
  const peers::PeerTable& peers;
  UserNames& users;
  std::string instance;  // 32 hex digits
  std::shared_ptr<LiveCalls> calls = std::make_shared<LiveCalls>();
};

// Serves one call: `body` gets the peer and returns a Status.
template <typename Body>
grpc::Status Serve(const Services& services, grpc::ServerContext& context, Body body) {
  context.AddTrailingMetadata("gpulease-instance", services.instance);
  const std::shared_ptr<const peers::Peer> peer = services.peers.Find(context.peer());
  if (!peer) {
    return ToGrpc(MakeError(Code::kUnauthenticated, Reason::kSessionEnded,
                            "this connection's process is not known (any more): connect anew"));
  }
  const Status status = body(*peer);
  return status.ok() ? grpc::Status::OK : ToGrpc(status.error());
}

// One call of a method that answers at once. It listens for the next before it serves, and ends
// itself.
template <typename Request, typename Response>
class UnaryCall final : public Completion {
 public:
  using Writer = grpc::ServerAsyncResponseWriter<Response>;
  // Asks gRPC for the next call of the method.
  using Listener = std::function<void(grpc::ServerContext*, Request*, Writer*, void* tag)>;
  using Handler = std::function<grpc::Status(grpc::ServerContext&, const Request&, Response&)>;
  struct Method {
    std::shared_ptr<LiveCalls> calls;
    Listener listen;
    Handler handle;
  };

  static void Listen(const std::shared_ptr<const Method>& method) {
    auto* const call = new UnaryCall(method);
    method->listen(&call->context_, &call->request_, &call->writer_, call);
  }

 private:
  explicit UnaryCall(std::shared_ptr<const Method> method)
      : method_(std::move(method)), live_(*method_->calls), writer_(&context_) {}

  void Complete(bool ok) override {
    if (!ok || served_) {
      delete this;
      return;
    }
    Listen(method_);
    served_ = true;
    const grpc::Status status = method_->handle(context_, request_, response_);
    if (status.ok()) {
      writer_.Finish(response_, status, this);
    } else {
      writer_.FinishWithError(status, this);
    }
  }

  const std::shared_ptr<const Method> method_;
  const LiveCall live_;
  grpc::ServerContext context_;
  Request request_;
  Response response_;
  Writer writer_;
  bool served_ = false;
};

// Listens for `method` of `async` (a generated AsyncService) on `queue` with `handle`.
template <typename Async, typename Base, typename Request, typename Response>
void ListenUnary(const Services& services, Async& async, grpc::ServerCompletionQueue& queue,
                 void (Base::*method)(grpc::ServerContext*, Request*,
                                      grpc::ServerAsyncResponseWriter<Response>*,
                                      grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void*),
                 typename UnaryCall<Request, Response>::Handler handle) {
  using Call = UnaryCall<Request, Response>;
  auto shared = std::make_shared<typename Call::Method>();
  shared->calls = services.calls;
  shared->listen = [&async, &queue, method](grpc::ServerContext* context, Request* request,
                                            typename Call::Writer* writer, void* tag) {
    (async.*method)(context, request, writer, &queue, &queue, tag);
  };
  shared->handle = std::move(handle);
  Call::Listen(shared);
}

}  // namespace gpulease::rpc
