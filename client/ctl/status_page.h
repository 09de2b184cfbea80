// SPDX-License-Identifier: Apache-2.0
//
// What people see first: the status page, and the sums below the listings. For people alone;
// programs read the tables of listing.h as JSON.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "client/ctl/table.h"
#include "gpulease/v1/lease.pb.h"
#include "gpulease/v1/node.pb.h"

namespace gpulease::ctl {

// The status page: the daemon, its GPUs, host memory and tenants, and last what an administrator
// should look at, a line each.
void PrintStatus(const v1::GetNodeResponse& node, const TextStyle& style, std::ostream& out);

// "2 leases: 60.0 GiB of GPU memory, 1.0 GiB of host memory": below the listings.
std::string GpuTotals(const v1::GetNodeResponse& node);
std::string LeaseTotals(const std::vector<v1::Lease>& leases);
std::string SessionTotals(const std::vector<v1::Session>& sessions);

}  // namespace gpulease::ctl
