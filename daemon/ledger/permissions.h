// SPDX-License-Identifier: Apache-2.0
//
// Who may open and see a lease: a file's rules, by owner, group and mode.
#pragma once

#include "daemon/ledger/ledger.h"

namespace gpulease::ledger {

bool IsMember(const UserSpec& user, std::uint32_t gid);
// Whether the lease is the user's, in whichever session.
bool IsOwner(const UserSpec& user, const Lease& lease);
// The first class that matches decides, owner before group before others, as for a file: an owner
// without the bit is refused even where others have it. Who is of another realm is one of the
// others, whatever his numbers. Administrators may everything.
bool MayOpen(const UserSpec& user, const Lease& lease, Access access);

}  // namespace gpulease::ledger
