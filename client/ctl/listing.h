// SPDX-License-Identifier: Apache-2.0
//
// What the daemon answers, as tables: one for each listing, with the field names of gpulease.v1 as
// keys. Fields of a nested MemoryUse stand beside those of its owner.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/ctl/table.h"
#include "gpulease/v1/lease.pb.h"
#include "gpulease/v1/node.pb.h"

namespace gpulease::ctl {

// Of all GPUs; `brief`: with short names and without what says how each is built, for the status
// page.
Table GpuTable(const v1::GetNodeResponse& node, bool brief);
Table HostTable(const v1::GetNodeResponse& node);
Table TenantTable(const v1::GetNodeResponse& node);
Table LeaseTable(const std::vector<v1::Lease>& leases);
Table BudgetTable(const v1::GetBudgetResponse& budget);
// Of all hints, or one: base/usage_hint.h.
Table AdviceTable(std::string_view name);
Table SessionTable(const std::vector<v1::Session>& sessions);

// Records.
Table NodeRecord(const v1::GetNodeResponse& node);
Table LeaseRecord(const v1::Lease& lease);
Table ReleaseRecord(const v1::Lease& lease, const v1::ReleaseResponse& released, bool dry_run);

// "LEASE_STATE_LEASED" as people write it: "leased".
std::string Word(v1::LeaseState state);
std::string Word(v1::GpuState state);
// "lease 17 (weights) of alice, 60.0 GiB on GPU-3f2a1b2c".
std::string Describe(const v1::Lease& lease);

}  // namespace gpulease::ctl
