// SPDX-License-Identifier: Apache-2.0
//
// FakeDaemon: the daemon's side of the wire for the SDK's tests: a stock gRPC server on sockets
// that it accepts itself, and the handle socket beside it. It grants whatever is asked from memfds,
// counts what it sees, and misbehaves where a test asks it to.
//
// Threads: a test's own, gRPC's, and one that serves the handle socket.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/handle_protocol.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "gpulease/v1/lease.pb.h"

namespace gpulease::fakes {

// What the fake does other than to grant. Change it between calls, under FakeDaemon::Change().
struct Behaviour {
  std::uint64_t chunk_bytes = 4096;  // a lease has as many chunks as that makes
  std::uint32_t chunks_per_push = 253;
  bool await_taken = false;   // sends the next push after the last was answered
  bool queue = false;         // Allocate answers "queued"; Await waits for Grant()
  std::string error_message;  // of every call, with `error_code` and details
  int error_code = 0;
  std::string simulated_directory;  // told to clients
  std::uint64_t reply_bytes = 0;    // GetNode's version has this many
  std::uint64_t header_bytes = 0;   // GetNode's trailing metadata have this many more
  bool hang = false;                // GetNode answers when its client gives up
  int endings_cut_off = 0;          // Releases and Closes that are done, and whose answer is lost
  bool refuse = false;              // Hello is answered with Refused
  std::function<UniqueFd(std::uint64_t size)> make_chunk;  // none: memfds
  std::string gpu_uuid;
};

struct Seen {
  std::map<std::string, int> calls;  // by method
  std::vector<handle::Taken> taken;
  std::vector<handle::Hello> hellos;
  int hello_descriptors = 0;
  int cancelled = 0;  // calls that their client gave up
};

class FakeDaemon {
 public:
  // Listens in `directory`, which exists.
  explicit FakeDaemon(std::string directory);
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  const std::string& directory() const { return directory_; }
  void Change(const std::function<void(Behaviour&)>& change);
  Seen seen();
  // Waits until it is true of what was seen. False when that takes longer than 10 s.
  bool WaitFor(const std::function<bool(const Seen&)>& condition);
  // Leases that exist now: not released, not given back.
  std::size_t lease_count();
  std::size_t session_count();

  // The daemon dies and comes back as another instance, with or without its former sessions.
  void Stop();
  void Start(bool keep_sessions);
  // Ends the calls' connections alone (GOAWAY), and accepts new ones.
  void RenewCalls();
  // Grants what is queued.
  void Grant();
  // Sends to every stream of events.
  void Send(const v1::Event& event);
  std::string instance();

 private:
  struct Impl;
  std::string directory_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpulease::fakes
