// SPDX-License-Identifier: Apache-2.0
//
// Host: has memory of one GPU that others open by 64-byte CUDA IPC handles. The driver ties such
// memory to the process that made it, and to its context: so it is this one's and not the daemon's,
// over whose restarts it lives, and with which alone it ends.
//
// It keeps no books: a block is freed when nobody has its pipe open any more (see ipc_protocol.h),
// and the program ends when it has had no block, and nobody has asked for one, for a moment.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/ipc_host/ipc_protocol.h"
#include "driver/cuda_driver.h"

namespace gpulease::ipc {

class Host {
 public:
  struct Options {
    std::string gpu;     // its UUID
    std::string socket;  // the path at which `listening` listens
    driver::DriverChoice driver;
    Duration linger = std::chrono::seconds(1);  // without a block
  };

  // `listening` does not block.
  Host(Options options, UniqueFd listening);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Serves until there is nothing more to serve.
  void Run();

 private:
  struct Block {
    cuda::CUdeviceptr address = 0;
    UniqueFd pipe;  // the reading end
  };

  // The driver and the GPU's primary context, current on this thread.
  Status Open();
  void Accept();
  // False when it asked for nothing that is known here.
  bool Answer(int connection);
  Result<UniqueFd> Make(Bytes bytes, Reply& reply);
  // Zeroed, and named in the reply.
  Status Fill(cuda::CUdeviceptr address, Bytes bytes, Reply& reply) const;

  const Options options_;
  UniqueFd listening_;
  std::shared_ptr<const driver::CudaDriver> cuda_;  // null before Open()
  std::optional<cuda::CUdevice> device_;
  std::vector<UniqueFd> connections_;
  std::vector<Block> blocks_;
  bool failed_ = false;  // the last request: a fresh process may do better
};

}  // namespace gpulease::ipc
