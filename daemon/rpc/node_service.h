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

class NodeService final : public v1::NodeService::Service {
 public:
  NodeService(const Services& services, NodeFacts facts)
      : services_(services), facts_(std::move(facts)) {}

  grpc::Status GetNode(grpc::ServerContext* context, const v1::GetNodeRequest* request,
                       v1::GetNodeResponse* response) override;
  grpc::Status ListSessions(grpc::ServerContext* context, const v1::ListSessionsRequest* request,
                            v1::ListSessionsResponse* response) override;

 private:
  const Services& services_;
  const NodeFacts facts_;
};

}  // namespace gpulease::rpc
