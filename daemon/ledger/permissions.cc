// SPDX-License-Identifier: Apache-2.0
#include "daemon/ledger/permissions.h"

#include <algorithm>

namespace gpulease::ledger {

bool IsMember(const UserSpec& user, std::uint32_t gid) {
  return user.gid == gid ||
         std::find(user.groups.begin(), user.groups.end(), gid) != user.groups.end();
}

bool IsOwner(const UserSpec& user, const Lease& lease) {
  return user.uid == lease.uid && user.realm == lease.realm;
}

bool MayOpen(const UserSpec& user, const Lease& lease, Access access) {
  if (user.administrator) return true;
  unsigned shift = 0;
  if (IsOwner(user, lease)) {
    shift = 6;
  } else if (user.realm == lease.realm && IsMember(user, lease.gid)) {
    shift = 3;
  }
  const std::uint32_t wanted = access == Access::kReadWrite ? 06u : 04u;
  return (lease.mode >> shift & wanted) == wanted;
}

}  // namespace gpulease::ledger
