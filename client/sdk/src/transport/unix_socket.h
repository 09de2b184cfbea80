// SPDX-License-Identifier: Apache-2.0
//
// Connecting to the daemon's sockets, and what it means when that does not work.
#pragma once

#include <string>

#include "base/result.h"
#include "client/sdk/src/process/fork_guard.h"

namespace gpulease {

// A connected socket of `type` (SOCK_STREAM or SOCK_SEQPACKET). Never waits for long: a unix socket
// connects at once or its backlog is full.
//
// Errors:
//   kUnavailable       nobody listens there, or its backlog is full: retry, is gpuleased running?
//   kPermissionDenied  the file's mode, a directory on the way or a security module forbids it.
//   kResourceExhausted this process's limit of open files.
//   kInternal          everything else.
Result<LocalFd> ConnectUnix(const std::string& path, int type);

}  // namespace gpulease
