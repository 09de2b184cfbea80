// SPDX-License-Identifier: Apache-2.0
//
// Where the sockets are. One rule for daemon, SDK and CLI: the directory asked for, else
// GPULEASE_RUNTIME_DIR, else /run/gpulease.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulease {

inline constexpr std::string_view kDefaultRuntimeDir = "/run/gpulease";
inline constexpr std::string_view kGrpcSocketName = "gpulease.sock";
inline constexpr std::string_view kHandleSocketName = "handles.sock";
inline constexpr std::string_view kKeeperSocketName = "keeper.sock";

struct RuntimePaths {
  std::string directory;
  std::string grpc_socket;
  std::string handle_socket;
  std::string keeper_socket;  // between the daemon and its keeper
};

// The paths below `directory` (empty: the rule above).
//
// Errors: kInvalidArgument when a socket's path is longer than the 107 bytes that a unix socket's
// address holds, or the directory is not absolute.
Result<RuntimePaths> ResolveRuntimePaths(std::string_view directory);

}  // namespace gpulease
