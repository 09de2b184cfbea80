// SPDX-License-Identifier: Apache-2.0
//
// Membership: which tenant pays for a peer, whose user it is, and what role it has, by what the
// kernel says of the peer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "base/result.h"
#include "daemon/ledger/ledger.h"
#include "daemon/peers/identity.h"
#include "daemon/rpc/user_names.h"
#include "daemon/settings/settings.h"

namespace gpulease::startup {

// Threads: any. Immutable.
class Membership {
 public:
  // Errors: kNotFound/kBadField when there is no such admin_group or operator_group.
  static Result<Membership> Make(const settings::Settings& settings);

  // Gives a peer of a container the realm that the settings say, if they do.
  void Place(peers::Peer& peer) const;
  // The first tenant of the settings that matches; else a tenant of the user's name, without
  // limits.
  ledger::TenantSpec TenantOf(const peers::Peer& peer) const;
  // Root of the machine, and its users in admin_group.
  bool IsAdministrator(const ledger::UserSpec& user) const;
  // Administrators, and the machine's users in operator_group.
  bool IsObserver(const ledger::UserSpec& user) const;

 private:
  std::vector<settings::Tenant> tenants_;
  std::vector<settings::RealmRule> realms_;
  std::optional<std::uint32_t> admin_gid_, operator_gid_;
};

// The one that counts now. Threads: any.
class CurrentMembership {
 public:
  explicit CurrentMembership(Membership membership) { Set(std::move(membership)); }
  void Set(Membership membership);
  std::shared_ptr<const Membership> Get() const;

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const Membership> membership_ GPULEASE_GUARDED_BY(mutex_);
};

}  // namespace gpulease::startup
