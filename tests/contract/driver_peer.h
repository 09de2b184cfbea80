// SPDX-License-Identifier: Apache-2.0
//
// DriverPeer: a second process that uses the driver as it is told. It is this test's program,
// started anew, because a driver does not survive fork.
//
// The peer has one chunk, one mapping of it and one plain allocation at a time. It answers every
// command with one line: a CUresult's name, or what was asked for.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "driver/cuda_driver.h"

namespace gpulease::testing {

// The driver under test: the machine's own with GPULEASE_CONTRACT_DRIVER=real, else the simulated
// node that UseSimulatedNode() named.
driver::DriverChoice ChosenDriver();
// For this process and the peers that it starts.
void UseSimulatedNode(const std::string& directory);

class DriverPeer {
 public:
  // Dies with a message when the program cannot be started.
  DriverPeer();
  // Kills the process, if it still runs, and waits for it.
  ~DriverPeer();
  DriverPeer(const DriverPeer&) = delete;
  DriverPeer& operator=(const DriverPeer&) = delete;

  // Commands:
  //   create BYTES [GPU]   cuMemCreate                  export    -> with a descriptor
  //   import               with a descriptor            release   cuMemRelease
  //   map ro|rw            reserve, map, set access     unmap
  //   fill HEX             the whole mapping            read      -> "aa bb": first and last byte
  //   alloc BYTES          cuMemAlloc                   handle    -> 64-byte CUDA IPC handle in hex
  //   open HEX             cuIpcOpenMemHandle           close
  //   follow HEX           opens an event by its handle, and a stream waits for it
  //   context              -> "none" or "some"
  //   fork                 a forked child that lives until the peer's end of the socket is closed
  std::string Ask(std::string_view command, int descriptor = -1, UniqueFd* received = nullptr);
  // The halves of Ask, for a command that does not return at once.
  void Send(std::string_view command, int descriptor = -1);
  std::string Receive(UniqueFd* received = nullptr);

  void Kill();
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
};

// True when this process is a peer: it has done its work and ends with `status`.
bool RanAsPeer(int argc, char** argv, int* status);

// Asks again and again until it is so; false after 20 s.
bool Eventually(const std::function<bool()>& is_so);

}  // namespace gpulease::testing
