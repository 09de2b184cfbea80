// SPDX-License-Identifier: Apache-2.0
//
// Continuation: what one process image of the daemon leaves to the next.
//
// The CUDA driver is initialised once for each process image: a GPU that comes later is not seen by
// it, and one that it has opened it never closes. So the daemon adopts a GPU, and lets go of one,
// by executing itself anew. Its pid, its lock and its listening sockets stay; clients that connect
// meanwhile wait in the sockets' queues.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/peers/endpoint.h"
#include "daemon/state/record.h"

namespace gpulease::startup {

struct Continuation {
  // Descriptors by number.
  int lock = -1;
  int grpc_listener = -1;
  int handle_listener = -1;
  bool activated = false;  // as in peers::Endpoint
  bool waited = false;     // for GPUs that are missing: long enough
  // With retired ones the driver is shown those of `served` alone, by UUID.
  std::vector<state::RetiredGpu> retired;
  std::vector<std::string> served;

  friend bool operator==(const Continuation&, const Continuation&) = default;
};

// As text, for the environment. Parse gives nothing for what Format did not make.
std::string Format(const Continuation& continuation);
std::optional<Continuation> Parse(std::string_view text);

// What an earlier image of this very process left; nothing at a first start. Call it once.
std::optional<Continuation> TakeContinuation();

// The endpoint that `continuation` names.
// Errors: kInternal when its descriptors are not what they should be.
Result<peers::Endpoint> AdoptEndpoint(const Continuation& continuation);

// Executes the running program anew with its arguments, the endpoint and `continuation`. Every
// other descriptor is closed by it. Returns only when that fails.
// Errors: ErrnoError.
Error ContinueAs(char** arguments, const peers::Endpoint& endpoint, Continuation continuation);

}  // namespace gpulease::startup
