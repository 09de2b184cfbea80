// SPDX-License-Identifier: Apache-2.0
//
// Peer: the other process of a loop that needs two: echoes, makes chunks as a broker would, lends,
// and opens 64-byte handles. Requests and replies are fixed structs, so that nothing but the socket
// is measured with them.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "client/bench/bench.h"
#include "driver/cuda_abi.h"

namespace gpulease::bench {

enum class PeerTask : std::uint32_t {
  kEcho,      // answers
  kMake,      // cuMemCreate and export of `size`; the descriptor comes with the reply
  kLend,      // leases `size`; `lease_id` in the reply
  kTakeBack,  // releases what it lent last
  kOpenIpc,   // cuIpcOpenMemHandle of `handle`
  kCloseIpc,
};

struct PeerRequest {
  PeerTask task = PeerTask::kEcho;
  std::uint64_t size = 0;
  cuda::CUipcMemHandle handle = {};
};

struct PeerReply {
  std::uint64_t lease_id = 0;
  double create_us = 0;
  double export_us = 0;
  double open_us = 0;
  char failure[160] = {};  // empty: it worked
};

// The end that asks.
class Peer {
 public:
  explicit Peer(const Bench& bench);
  // Throws std::runtime_error when it failed or is gone.
  PeerReply Ask(const PeerRequest& request, UniqueFd* descriptor = nullptr);

 private:
  playground::Worker worker_;
};

// The end that answers, until the other is gone. The exit code.
int RunPeer(const std::string& runtime_dir, const std::string& simulated_directory,
            const std::string& gpu_uuid);

}  // namespace gpulease::bench
