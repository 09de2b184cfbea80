// SPDX-License-Identifier: Apache-2.0
//
// Identity: who is at the other end of a unix socket, as the kernel knows it. Nothing that the peer
// says about itself is believed; what it sends (its own pidfd, where the kernel has no
// SO_PEERPIDFD) is held against the kernel's word.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/ledger/ledger.h"

namespace gpulease::peers {

// The process that connected.
struct Peer {
  ledger::UserSpec user;
  std::int32_t pid = 0;  // in the daemon's PID namespace; 0: not visible there
  std::uint64_t process =
      0;                // equal for connections of one process, never for two; 0: not known yet
  std::string program;  // its comm, for people
  std::string cgroup;   // its cgroup v2 path when it connected, "" where there is none
};

// The realm of processes of a container, by the path of their cgroup: up to the first component
// that a runtime or systemd made for it ("/system.slice/docker-….scope", "/docker/<id>",
// "/user.slice/user-1000.slice"): below it a container arranges itself. Empty where the path tells
// nothing ("/").
std::string ContainerOf(std::string_view cgroup);

// A process is in a container when it has a PID namespace of its own below the daemon's. This is
// what the kernel lets everybody read of everybody (/proc/PID/status and cgroup); it may not say
// which namespaces a process of another user is in.
struct Identity {
  Peer peer;
  UniqueFd
      pidfd;  // turns readable when the process is dead; empty where the kernel does not give it
};

// Reads the credentials of a connected socket.
//
// Errors: kPermissionDenied when the kernel names no user (an unmapped user namespace); ErrnoError
// else.
Result<Identity> IdentifyPeer(int socket);

// Completes an identity without pidfd by one that the peer sent.
//
// Errors: kPermissionDenied when it is no pidfd, of another process than the credentials name, or
// dead already.
Status AdoptPidfd(Identity& identity, UniqueFd pidfd);

// Completes an identity without pidfd by the process that has its pid now. For connections that
// only ask; a session's pidfd comes from the kernel or from AdoptPidfd.
//
// Errors: kPermissionDenied when there is none (any more).
Status OpenPidfd(Identity& identity);

}  // namespace gpulease::peers
