// SPDX-License-Identifier: Apache-2.0
//
// Server: the gRPC server. It listens nowhere: accepted connections are given to it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "daemon/broker/broker.h"
#include "daemon/peers/peer_table.h"

namespace gpulease::rpc {

struct NodeFacts;

class Server {
 public:
  Server(broker::Broker& broker, const peers::PeerTable& peers, std::string instance,
         const NodeFacts& facts);
  ~Server();

  // Takes a connected, non-blocking socket that is in the PeerTable already.
  void Serve(UniqueFd connection);
  // Calls `answered` from a thread that serves calls, as soon as one is free. Not after Shutdown.
  void Ask(std::function<void()> answered);
  // Waits for calls in progress, for `bound` at most, tells clients that it ends, and cancels what
  // is left. False when a call does not end even so (it is stuck in the driver): a thread is left
  // behind, and the Server must not be destroyed.
  bool Shutdown(Duration bound);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace gpulease::rpc
