// SPDX-License-Identifier: Apache-2.0
//
// The floor of a gRPC call: gRPC's own C++ client and synchronous server, two processes, a unix
// socket, a call that does nothing. Both are workers, so that gRPC's threads are in no process that
// measures something else.
#pragma once

#include <string>

namespace gpulease::bench {

// Serves the leader, and gRPC on `socket_path` from its first line on. The exit code.
int RunGrpcServer(const std::string& socket_path);
// Answers "run N" with the microseconds of N calls, once there is a server. The exit code.
int RunGrpcClient(const std::string& socket_path);

}  // namespace gpulease::bench
