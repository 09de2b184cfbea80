// SPDX-License-Identifier: Apache-2.0
//
// IpcMemory: makes blocks of one GPU's memory that have a 64-byte CUDA IPC handle, in the process
// gpulease-ipc-host, which it starts when there is none. The daemon has no thread of that process's
// life in hand: it is found by the path of its socket, also by the daemon's next life.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/ipc_host/ipc_protocol.h"

namespace gpulease::memory {

struct IpcPlace {
  std::string program;              // gpulease-ipc-host
  std::string directory;            // of its sockets
  std::string simulated_directory;  // empty: the machine's own driver
};

struct IpcBlock {
  std::string handle;  // 64 bytes
  Bytes offset = 0;    // of the block in what the handle opens
  // Lives as long as a duplicate of this is open somewhere; reports an error (POLLERR) when the
  // process that has the block is gone.
  UniqueFd keeps;
};

// Threads: any.
class IpcMemory {
 public:
  IpcMemory(IpcPlace place, std::string gpu);

  // The process is there and has its context, which takes a second where it has to be started.
  // True: this call started it.
  //
  // Errors: those of CudaDriver::MakeError, as the process met them; kFailedPrecondition when it
  // cannot be started, kUnavailable when it ends before it answers, or does not answer for a
  // minute.
  Result<bool> Prepare();
  // Memory that reads as zeros. `bytes` is a multiple of the granularity.
  // Errors: those of Prepare(), but after five seconds.
  Result<IpcBlock> CreateBlock(Bytes bytes);
  // The process is there, and has the GPU open.
  bool IsThere() const;

 private:
  struct Line {
    UniqueFd socket;
    bool started = false;  // for this line
  };
  struct Answer {
    ipc::Reply reply;
    std::vector<UniqueFd> descriptors;
    bool started = false;
  };
  Result<Line> Reach();
  Result<UniqueFd> Connect() const;  // empty: nobody is there
  Status Start() const;
  Result<Answer> Ask(const ipc::Request& request, Duration bound);

  const IpcPlace place_;
  const std::string gpu_;
  const std::string path_;
  Mutex mutex_;  // held while one is started
};

}  // namespace gpulease::memory
