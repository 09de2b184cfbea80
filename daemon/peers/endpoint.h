// SPDX-License-Identifier: Apache-2.0
//
// Endpoint: the runtime directory with its lock and its two listening sockets. There is one per
// directory: who holds the lock owns the sockets, and nobody else touches them.
#pragma once

#include <string>

#include "base/result.h"
#include "base/runtime_dir.h"
#include "base/unique_fd.h"

namespace gpulease::peers {

struct Endpoint {
  UniqueFd lock;
  UniqueFd grpc_listener;    // SOCK_STREAM
  UniqueFd handle_listener;  // SOCK_SEQPACKET
  bool activated = false;    // the service manager made the sockets, and removes them
};

// Makes the directory (0755) where it is missing, takes the lock, and listens. A socket file that
// nobody listens on is replaced; anything else in its place is left alone. With `socket_group` the
// sockets are for its members (0660), else for everybody (0666).
//
// Where the service manager hands both sockets over (sd_listen_fds(3)), told apart by their type,
// those are taken, with the modes that it gave them; but `socket_group` holds for them too.
//
// Errors:
//   kAlreadyExists        another gpuleased serves this directory (the message has its pid).
//   kFailedPrecondition   the directory could be changed by others, or something else is where a
//                         socket goes, or the service manager's sockets are not these two.
//   kNotFound             no such group.
//   ErrnoError            everything else.
Result<Endpoint> OpenEndpoint(const RuntimePaths& paths, const std::string& socket_group);

// Removes the sockets' files, unless they are the service manager's. Nobody can connect then.
void RemoveSockets(const Endpoint& endpoint, const RuntimePaths& paths);

}  // namespace gpulease::peers
