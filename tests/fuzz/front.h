// SPDX-License-Identifier: Apache-2.0
//
// Front: the daemon's two sockets, in this process and on this thread: who fuzzes what is behind
// them says when it runs.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "daemon/peers/reception.h"
#include "tests/unit/scratch_dir.h"

namespace gpulease::fuzz {

// How many sockets and pidfds this process has open.
inline std::size_t OpenPeers() {
  std::size_t count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string name = std::filesystem::read_symlink(entry.path(), ignored);
    count += name.starts_with("socket:") || name.find("pidfd") != std::string::npos ? 1 : 0;
  }
  return count;
}

class Front {
 public:
  explicit Front(peers::Registrar& registrar) {
    Result<RuntimePaths> paths = ResolveRuntimePaths(scratch_.path());
    GPULEASE_CHECK(paths.ok(), "runtime paths");
    paths_ = *paths;
    Result<peers::Endpoint> endpoint = peers::OpenEndpoint(paths_, "");
    GPULEASE_CHECK(endpoint.ok(), endpoint.error().message);
    endpoint_ = std::move(*endpoint);
    peers::Reception::Options options;
    options.version = "fuzz";
    options.session_grace = std::chrono::seconds(30);
    options.connections = 64;
    options.connections_per_user = 64;
    reception_ = std::make_unique<peers::Reception>(
        loop_, endpoint_, table_, registrar,
        [this](UniqueFd served) { served_[served.get()] = std::move(served); }, options);
    // As an older kernel has it: clients may send descriptors.
    const int on = 1;
    static_cast<void>(setsockopt(endpoint_.handle_listener.get(), SOL_SOCKET, handle::kPassRights,
                                 &on, sizeof on));
  }

  // A connected client's end, non-blocking; empty when the backlog is full.
  UniqueFd Connect(bool handles) {
    UniqueFd client(socket(
        AF_UNIX, (handles ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string& path = handles ? paths_.handle_socket : paths_.grpc_socket;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    if (connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      client.Reset();
    }
    return client;
  }
  void Run() { loop_.RunReady(); }
  // Until every connection is over and its place free. False when that takes seconds.
  bool RunUntilEmpty() {
    for (int i = 0; i < 500 && reception_->connection_count() > 0; ++i) {
      loop_.RunReady();
      served_.clear();
      if (reception_->connection_count() > 0) usleep(10'000);
    }
    return reception_->connection_count() == 0;
  }

  peers::Reception& reception() { return *reception_; }
  const peers::PeerTable& table() const { return table_; }
  // gRPC's ends of its connections, which nobody serves here.
  std::map<int, UniqueFd>& served() { return served_; }
  const std::string& directory() const { return scratch_.path(); }

 private:
  ScratchDir scratch_;
  RuntimePaths paths_;
  peers::EventLoop loop_;
  peers::Endpoint endpoint_;
  peers::PeerTable table_;
  std::map<int, UniqueFd> served_;
  std::unique_ptr<peers::Reception> reception_;
};

}  // namespace gpulease::fuzz
