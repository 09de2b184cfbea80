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

// The group that `option` names; none when it is empty.
Result<std::optional<std::uint32_t>> FindGroup(const char* option, const std::string& name) {
  if (name.empty()) return std::optional<std::uint32_t>();
  const group* const entry = getgrnam(name.c_str());
  if (entry == nullptr) {
    return MakeError(Code::kNotFound, Reason::kBadField,
                     std::string(option) + ": there is no group \"" + name + "\"");
  }
  return std::optional<std::uint32_t>(entry->gr_gid);
}

}  // namespace

Result<Membership> Membership::Make(const settings::Settings& settings) {
  Membership membership;
  membership.tenants_ = settings.tenants;
  membership.realms_ = settings.realms;
  Result<std::optional<std::uint32_t>> admins = FindGroup("admin_group", settings.admin_group);
  if (!admins.ok()) return std::move(admins).error();
  membership.admin_gid_ = *admins;
  Result<std::optional<std::uint32_t>> operators =
      FindGroup("operator_group", settings.operator_group);
  if (!operators.ok()) return std::move(operators).error();
  membership.operator_gid_ = *operators;
  return membership;
}

void Membership::Place(peers::Peer& peer) const {
  ledger::Realm& realm = peer.user.realm;
  if (realm.empty()) return;
  for (const settings::RealmRule& rule : realms_) {
    if (rule.cgroup_prefix != "/" && !IsBelow(peer.cgroup, rule.cgroup_prefix) &&
        !IsBelow(realm, rule.cgroup_prefix)) {
      continue;
    }
    realm = rule.name;
    return;
  }
}

ledger::TenantSpec Membership::TenantOf(const peers::Peer& peer) const {
  for (const settings::Tenant& tenant : tenants_) {
    if ((tenant.uid || tenant.gid) && !peer.user.realm.empty()) continue;
    if (tenant.uid && *tenant.uid != peer.user.uid) continue;
    if (tenant.gid && !IsIn(peer.user, *tenant.gid)) continue;
    if (!tenant.cgroup_prefix.empty() && !IsBelow(peer.cgroup, tenant.cgroup_prefix)) continue;
    return {tenant.name, tenant.device_limit, tenant.host_limit};
  }
  static rpc::UserNames* const users = new rpc::UserNames;
  const ledger::UserId account = ledger::AccountOf(peer.user);
  return {"user:" + users->NameOf(account.uid) + (account.realm.empty() ? "" : "@" + account.realm),
          0, 0};
}

bool Membership::IsAdministrator(const ledger::UserSpec& user) const {
  return user.root || (user.realm.empty() && admin_gid_ && IsIn(user, *admin_gid_));
}

bool Membership::IsObserver(const ledger::UserSpec& user) const {
  return IsAdministrator(user) ||
         (user.realm.empty() && operator_gid_ && IsIn(user, *operator_gid_));
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
