// SPDX-License-Identifier: Apache-2.0
//
// NodeService: how the node stands, from the books.
#pragma once

#include "daemon/rpc/call.h"
#include "gpulease/v1/node.grpc.pb.h"

namespace gpulease::rpc {

// What does not change while the daemon runs.
struct NodeFacts {
  std::string version;
  std::string driver_version;
  bool simulated = false;
  std::uint32_t descriptors_limit = 0;
  Time started{};
};

class NodeService {
 public:
  NodeService(const Services& services, NodeFacts facts)
      : services_(services), facts_(std::move(facts)) {}

  grpc::Service& service() { return async_; }
  void Listen(grpc::ServerCompletionQueue& queue);

  // The methods, as they stand behind gRPC.
  Status GetNode(v1::GetNodeResponse& response);
  Status Drain(const peers::Peer& peer, const v1::DrainRequest& request,
               v1::DrainResponse& response);
  Status ListSessions(const peers::Peer& peer, const v1::ListSessionsRequest& request,
                      v1::ListSessionsResponse& response);

 private:
  const Services& services_;
  const NodeFacts facts_;
  v1::NodeService::AsyncService async_;
};

}  // namespace gpulease::rpc
