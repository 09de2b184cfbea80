// SPDX-License-Identifier: Apache-2.0
//
// Who may open and see a lease: a file's rules, by owner, group and mode.
#pragma once

#include "daemon/ledger/ledger.h"

namespace gpulease::ledger {

bool IsMember(const UserSpec& user, std::uint32_t gid);
// The first class that matches decides, owner before group before others, as for a file: an owner
// without the bit is refused even where others have it. Administrators may everything.
bool MayOpen(const UserSpec& user, const Lease& lease, Access access);

}  // namespace gpulease::ledger
