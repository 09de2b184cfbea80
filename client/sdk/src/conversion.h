// SPDX-License-Identifier: Apache-2.0
//
// Between the interface's types and the messages.
#pragma once

#include "client/sdk/include/gpulease/gpulease.h"
#include "gpulease/v1/lease.wire.h"
#include "gpulease/v1/node.wire.h"

namespace gpulease {

wire::AllocationSpec SpecOf(const AllocateOptions& options);
wire::Access AccessOf(Access access);
BlockingLease BlockingOf(const wire::Blocker& blocker);
LeaseStatus StatusOf(const wire::Lease& lease);
// Without ordinals.
BudgetStatus StatusOf(const wire::Budget& budget);
NodeStatus StatusOf(const wire::GetNodeResponse& node);
Event EventOf(wire::Event event);

}  // namespace gpulease
