// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/membership.h"

#include <grp.h>

#include <algorithm>

namespace gpulease::startup {
namespace {

bool IsIn(const ledger::UserSpec& user, std::uint32_t gid) {
  return user.gid == gid ||
         std::find(user.groups.begin(), user.groups.end(), gid) != user.groups.end();
}

// "/a" is the prefix of "/a" and "/a/b", not of "/ab".
bool IsBelow(const std::string& cgroup, const std::string& prefix) {
  return cgroup.starts_with(prefix) &&
         (cgroup.size() == prefix.size() || prefix.back() == '/' || cgroup[prefix.size()] == '/');
}

}  // namespace

Result<Membership> Membership::Make(const settings::Settings& settings) {
  Membership membership;
  membership.tenants_ = settings.tenants;
  if (!settings.admin_group.empty()) {
    const group* const entry = getgrnam(settings.admin_group.c_str());
    if (entry == nullptr) {
      return MakeError(Code::kNotFound, Reason::kBadField,
                       "admin_group: there is no group \"" + settings.admin_group + "\"");
    }
    membership.admin_gid_ = entry->gr_gid;
  }
  return membership;
}

ledger::TenantSpec Membership::TenantOf(const peers::Peer& peer) const {
  for (const settings::Tenant& tenant : tenants_) {
    if (tenant.uid && *tenant.uid != peer.user.uid) continue;
    if (tenant.gid && !IsIn(peer.user, *tenant.gid)) continue;
    if (!tenant.cgroup_prefix.empty() && !IsBelow(peer.cgroup, tenant.cgroup_prefix)) continue;
    return {tenant.name, tenant.device_limit, tenant.host_limit};
  }
  static rpc::UserNames* const users = new rpc::UserNames;
  return {"user:" + users->NameOf(peer.user.uid), 0, 0};
}

bool Membership::IsAdministrator(const ledger::UserSpec& user) const {
  return user.uid == 0 || (admin_gid_ && IsIn(user, *admin_gid_));
}

void CurrentMembership::Set(Membership membership) {
  auto shared = std::make_shared<const Membership>(std::move(membership));
  MutexLock lock(mutex_);
  membership_ = std::move(shared);
}

std::shared_ptr<const Membership> CurrentMembership::Get() const {
  MutexLock lock(mutex_);
  return membership_;
}

}  // namespace gpulease::startup
