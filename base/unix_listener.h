// SPDX-License-Identifier: Apache-2.0
//
// What every program of ours that listens on unix sockets does first: a directory in which nobody
// else can replace them, and a listening socket in the place of one that a dead program left.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace gpulease {

// Makes the directory (0755) where it is missing.
//
// Errors: kFailedPrecondition when it is no directory or could be changed by others; ErrnoError.
Status PrepareRuntimeDirectory(const std::string& directory);

// Listens at `path` on a non-blocking socket of `type`, with `mode` from the first connection on
// and, if given, `group`. A socket file that nobody listens on is replaced; anything else in its
// place is left alone.
//
// Errors: kFailedPrecondition when something else is there; ErrnoError.
Result<UniqueFd> ListenUnix(const std::string& path, int type, mode_t mode,
                            std::optional<gid_t> group = std::nullopt);

}  // namespace gpulease
