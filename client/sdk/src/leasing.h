// SPDX-License-Identifier: Apache-2.0
//
// How a session comes to leases: it allocates them, or opens those of others; with what travels
// with them (see Publication).
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "client/sdk/src/lease_record.h"

namespace gpulease {

// The pieces of one request, granted within its own `wait`: all or none. `loading`: to fill them
// for others.
// Errors: those of Client::Allocate.
Result<std::vector<std::shared_ptr<LeaseRecord>>> AllocateRecords(
    const std::shared_ptr<Session>& session, std::span<const AllocateOptions> options,
    std::chrono::milliseconds wait, bool loading = false);

// `request` names the lease. Errors: those of Client::Open.
Result<std::shared_ptr<LeaseRecord>> OpenRecord(const std::shared_ptr<Session>& session,
                                                wire::OpenRequest request, Access access);

// Takes over an orphan of this user. Errors: those of Client::Claim.
Result<std::shared_ptr<LeaseRecord>> ClaimRecord(const std::shared_ptr<Session>& session,
                                                 const wire::ClaimRequest& request);

}  // namespace gpulease
