// SPDX-License-Identifier: Apache-2.0
//
// ClientProcess: a client in a process of its own (gpulease-test-client) that does one step at a
// time as it is told, so that a test can kill it at every one.
//
// Each command is a line and is answered by a line; what went wrong begins with "error ".
//
//   dial                        connects the handle socket
//   hello [SESSION]             says Hello, resumes a session -> its id
//   hangup                      closes the handle socket
//   halfclose                   ends its sending side, and keeps the rest open and unread
//   session ID                  pretends that its session is another one
//   device|host BYTES [WORD…]   allocates. Words: name=, mode=, gid=, wait=MS, id=REQUEST, gpu=,
//   page=
//                               huge|small, loading, linger=MS, persistent, ipc, untaken (the
//                               descriptors stay on their way) -> "ID offered" or "ID queued
//                               POSITION"
//   await ID                    waits for a queued lease -> "ID offered"
//   open NAME|ID ro|rw [untaken] -> "ID offered"
//   take ID                     takes what `untaken` left
//   map ID [ro]                 maps it
//   fill ID BYTE                writes every byte
//   check ID BYTE               -> "yes", or the offset of the first byte that is not so
//   poke ID                     writes one byte through a fresh shared mapping of a host chunk ->
//   "ok"
//                               or an errno's name
//   reopen ID                   opens a host chunk's descriptor anew for writing -> "ok" or errno's
//                               name
//   unmap|drop|close|release ID drop: closes the descriptors that were received
//   fork                        a forked child that keeps what it inherits -> its pid
//   files N                     may have N open files
//   node                        -> "leases sessions"
//   show NAME|ID                -> the state of a lease that it may see
//   leases                      -> the names of the leases that it may see, in their order
//   sessions                    -> how many sessions it may see
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "tests/e2e/container.h"

namespace gpulease::e2e {

struct ClientOptions {
  std::optional<std::uint32_t> uid;           // as root only; gid is the same number
  std::vector<std::uint32_t> groups;          // supplementary
  std::optional<ContainerOptions> container;  // as its root (as root only)
};

// Whether tests can start clients of other users.
bool CanSwitchUsers();

// Threads: one.
class ClientProcess {
 public:
  explicit ClientProcess(const std::string& runtime_dir, ClientOptions options = {});
  // Kills it, if it still runs.
  ~ClientProcess();
  ClientProcess(ClientProcess&& other) noexcept;
  ClientProcess& operator=(ClientProcess&&) = delete;

  std::string Ask(std::string_view command);
  // The halves of Ask, for a command that does not return at once.
  void Send(std::string_view command);
  std::string Receive();
  // "dial" and "hello".
  void Connect();
  // The lease id of an answer to device, host, open or await; 0 when it is an error.
  static std::uint64_t LeaseOf(const std::string& answer);

  void Kill();
  // Ends it in order, and waits.
  int Exit();
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
};

}  // namespace gpulease::e2e
