// SPDX-License-Identifier: Apache-2.0
#include "base/runtime_dir.h"

#include <sys/un.h>

#include <cstdlib>

namespace gpulease {

Result<RuntimePaths> ResolveRuntimePaths(std::string_view directory) {
  std::string chosen(directory);
  if (chosen.empty()) {
    if (const char* const from_environment = std::getenv("GPULEASE_RUNTIME_DIR"))
      chosen = from_environment;
  }
  if (chosen.empty()) chosen = kDefaultRuntimeDir;
  if (chosen.front() != '/') {
    return MakeError(Code::kInvalidArgument, Reason::kBadField,
                     "runtime directory \"" + chosen + "\" is not an absolute path");
  }
  while (chosen.size() > 1 && chosen.back() == '/') chosen.pop_back();
  RuntimePaths paths;
  paths.grpc_socket = chosen + "/" + std::string(kGrpcSocketName);
  paths.handle_socket = chosen + "/" + std::string(kHandleSocketName);
  paths.keeper_socket = chosen + "/" + std::string(kKeeperSocketName);
  paths.directory = std::move(chosen);
  constexpr std::size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (paths.grpc_socket.size() > kLongest || paths.handle_socket.size() > kLongest) {
    return MakeError(Code::kInvalidArgument, Reason::kBadField,
                     "runtime directory \"" + paths.directory +
                         "\" is too long: a unix socket's path holds " + std::to_string(kLongest) +
                         " bytes, " + paths.grpc_socket + " has " +
                         std::to_string(paths.grpc_socket.size()) + "; choose a shorter one");
  }
  return paths;
}

}  // namespace gpulease
