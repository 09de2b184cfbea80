// SPDX-License-Identifier: Apache-2.0
//
// PeerTable: which process is behind a gRPC connection. gRPC names a call's connection by its
// descriptor number
// ("fd:5123"); the table is filled before gRPC gets the descriptor, and an entry goes when its
// connection or its process does, so that a call finds the process that connected or nobody.
//
// Threads: any.
#pragma once

#include <map>
#include <memory>
#include <string_view>

#include "base/mutex.h"
#include "daemon/peers/identity.h"

namespace gpulease::peers {

class PeerTable {
 public:
  void Add(int descriptor, std::shared_ptr<const Peer> peer) {
    MutexLock lock(mutex_);
    peers_[descriptor] = std::move(peer);
  }
  void Remove(int descriptor) {
    MutexLock lock(mutex_);
    peers_.erase(descriptor);
  }
  // The peer of grpc::ServerContext::peer(), or null.
  std::shared_ptr<const Peer> Find(std::string_view name) const;

 private:
  mutable Mutex mutex_;
  std::map<int, std::shared_ptr<const Peer>> peers_ GPULEASE_GUARDED_BY(mutex_);
};

}  // namespace gpulease::peers
