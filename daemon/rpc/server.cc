// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/server.h"

#include <grpcpp/alarm.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>

#include <future>
#include <thread>

#include "base/check.h"
#include "daemon/rpc/health_service.h"
#include "daemon/rpc/lease_service.h"
#include "daemon/rpc/node_service.h"

namespace gpulease::rpc {
namespace {

// A request is a few KiB: 64 specs with 16 labels each of at most 318 bytes come to about 350 KiB.
// A seal may carry a directory of 2 MiB.
constexpr int kLargestRequest = (2 << 20) + (384 << 10);
// Of all connections: requests that have come in part, above all. Beyond, gRPC closes connections
// that are idle and then ends calls, whosever they are: so much is met by malice alone.
constexpr std::size_t kMostMemory = std::size_t{512} << 20;
// How long clients may take to notice that the server goes, once no call is in progress. An idle
// client may not read its connection at all, and gRPC would wait for it.
constexpr Duration kGoodbye = std::chrono::milliseconds(50);
// How long cancelled calls may take to notice.
constexpr Duration kCancelledEnd = std::chrono::milliseconds(300);

// Goes through the queue and answers at its end.
class Question final : public Completion {
 public:
  Question(LiveCalls& calls, std::function<void()> answered)
      : live_(calls), answered_(std::move(answered)) {}
  // Another thread may have ended the object when this returns.
  void Ask(grpc::ServerCompletionQueue& queue) {
    alarm_.Set(&queue, std::chrono::system_clock::now(), this);
  }
  void Complete(bool ok) override {
    if (ok) answered_();
    delete this;
  }

 private:
  const LiveCall live_;
  const std::function<void()> answered_;
  grpc::Alarm alarm_;
};

}  // namespace

struct Server::Parts {
  UserNames users;
  Services services;
  LeaseService leases;
  NodeService node;
  HealthService health;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<CallLoop> loop;
  std::size_t listening = 0;  // call objects while no call is in progress

  Parts(broker::Broker& broker, const peers::PeerTable& peers, std::string instance,
        const NodeFacts& facts)
      : services{broker, peers, users, std::move(instance)},
        leases(services),
        node(services, facts),
        health(services) {}
};

Server::Server(broker::Broker& broker, const peers::PeerTable& peers, std::string instance,
               const NodeFacts& facts)
    : parts_(std::make_unique<Parts>(broker, peers, std::move(instance), facts)) {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kLargestRequest);
  builder.SetResourceQuota(grpc::ResourceQuota("gpuleased").Resize(kMostMemory));
  // Local sockets need no pings; a client's are answered however often they come.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 64 << 10);
  // No probing of the bandwidth of a unix socket: its pings would wake the client in the middle of
  // its calls.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.RegisterService(&parts_->leases.service());
  builder.RegisterService(&parts_->node.service());
  builder.RegisterService(&parts_->health.service());
  parts_->queue = builder.AddCompletionQueue();
  parts_->server = builder.BuildAndStart();
  GPULEASE_CHECK(parts_->server != nullptr, "the gRPC server does not start");
  parts_->leases.Listen(*parts_->queue);
  parts_->node.Listen(*parts_->queue);
  parts_->health.Listen(*parts_->queue);
  parts_->listening = parts_->services.calls->count();
  parts_->loop = std::make_unique<CallLoop>(*parts_->queue);
  parts_->loop->Start();
}

Server::~Server() = default;

void Server::Serve(UniqueFd connection) {
  grpc::AddInsecureChannelFromFd(parts_->server.get(), connection.Release());
}

void Server::Ask(std::function<void()> answered) {
  (new Question(*parts_->services.calls, std::move(answered)))->Ask(*parts_->queue);  // ends itself
}

bool Server::Shutdown(Duration bound) {
  // gRPC cancels calls at the deadline and then waits for them without end; one that is stuck in
  // the driver cannot be cancelled.
  std::promise<void> promise;
  const std::future<void> ended = promise.get_future();
  std::thread ender([this, bound, promise = std::move(promise)]() mutable {
    parts_->services.calls->Await(parts_->listening, bound);
    parts_->server->Shutdown(
        std::chrono::system_clock::now() +
        std::chrono::duration_cast<std::chrono::system_clock::duration>(kGoodbye));
    parts_->services.calls->AwaitNone();
    parts_->queue->Shutdown();
    parts_->loop->Join();
    promise.set_value();
  });
  if (ended.wait_for(bound + kGoodbye + kCancelledEnd) != std::future_status::ready) {
    ender.detach();
    return false;
  }
  ender.join();
  return true;
}

}  // namespace gpulease::rpc
