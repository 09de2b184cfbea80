// SPDX-License-Identifier: Apache-2.0
//
// What every call needs: the broker, who is calling, and the daemon's instance on the reply.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "daemon/broker/broker.h"
#include "daemon/peers/peer_table.h"
#include "daemon/rpc/convert.h"
#include "daemon/rpc/user_names.h"

namespace gpulease::rpc {

struct Services {
  broker::Broker& broker;
  const peers::PeerTable& peers;
  UserNames& users;
  std::string instance;  // 32 hex digits
};

// Serves one call: `body` gets the peer and returns a Status. Context is grpc::ServerContext or its
// callback kin.
template <typename Context, typename Body>
grpc::Status Serve(const Services& services, Context& context, Body body) {
  context.AddTrailingMetadata("gpulease-instance", services.instance);
  const std::shared_ptr<const peers::Peer> peer = services.peers.Find(context.peer());
  if (!peer) {
    return ToGrpc(MakeError(Code::kUnauthenticated, Reason::kSessionEnded,
                            "this connection's process is not known (any more): connect anew"));
  }
  const Status status = body(*peer);
  return status.ok() ? grpc::Status::OK : ToGrpc(status.error());
}

}  // namespace gpulease::rpc
