// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include "base/check.h"
#include "daemon/rpc/lease_service.h"
#include "daemon/rpc/node_service.h"

namespace gpulease::rpc {
namespace {

// A request is a few KiB: 64 specs with 16 labels each of at most 318 bytes come to about 350 KiB.
constexpr int kLargestRequest = 1 << 20;
// Calls on their way at once; each has a thread while it runs, and none waits for memory.
constexpr int kMostThreads = 256;

}  // namespace

struct Server::Parts {
  UserNames users;
  Services services;
  LeaseService leases;
  NodeService node;
  std::unique_ptr<grpc::Server> server;

  Parts(broker::Broker& broker, const peers::PeerTable& peers, std::string instance,
        const NodeFacts& facts)
      : services{broker, peers, users, std::move(instance)},
        leases(services),
        node(services, facts) {}
};

Server::Server(broker::Broker& broker, const peers::PeerTable& peers, std::string instance,
               const NodeFacts& facts)
    : parts_(std::make_unique<Parts>(broker, peers, std::move(instance), facts)) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("gpulease");
  quota.SetMaxThreads(kMostThreads);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kLargestRequest);
  // Local sockets need no pings; a client's are answered however often they come.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 64 << 10);
  builder.RegisterService(&parts_->leases);
  builder.RegisterService(&parts_->node);
  parts_->server = builder.BuildAndStart();
  GPULEASE_CHECK(parts_->server != nullptr, "the gRPC server does not start");
  parts_->server->GetHealthCheckService()->SetServingStatus(true);
  for (const char* service : {"gpulease.v1.LeaseService", "gpulease.v1.NodeService"}) {
    parts_->server->GetHealthCheckService()->SetServingStatus(service, true);
  }
}

Server::~Server() = default;

void Server::Serve(UniqueFd connection) {
  grpc::AddInsecureChannelFromFd(parts_->server.get(), connection.Release());
}

void Server::Shutdown(Duration bound) {
  parts_->server->Shutdown(std::chrono::system_clock::now() +
                           std::chrono::duration_cast<std::chrono::system_clock::duration>(bound));
}

}  // namespace gpulease::rpc
