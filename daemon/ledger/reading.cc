// SPDX-License-Identifier: Apache-2.0
//
// What others may read of the books.
#include <algorithm>

#include "daemon/ledger/impl.h"
#include "daemon/ledger/permissions.h"

namespace gpulease::ledger {
namespace {

constexpr std::size_t kMostBlockers = 8;  // Error::blockers
// Of a pool's largest leases, so many are looked at for those of one tenant: what is not among them
// is too small to matter.
constexpr std::size_t kMostLooks = 256;

}  // namespace

bool Ledger::Impl::MaySee(const UserSpec& user, const Lease& lease) const {
  if (user.administrator || user.observer || IsOwner(user, lease)) return true;
  if (MayOpen(user, lease, Access::kReadOnly)) return true;
  return std::any_of(lease.holders.begin(), lease.holders.end(), [&](const Holding& holding) {
    const auto session = sessions.find(holding.session);
    return session != sessions.end() && session->second.session.spec.user.id() == user.id();
  });
}

// The largest charged leases of `pools`, of `tenant` alone when there is one, as `user` may see
// them.
std::vector<Blocker> Ledger::Impl::BlockersOf(const PoolSet& wanted, const TenantAccount* tenant,
                                              const UserSpec& user) const {
  std::vector<Blocker> blockers;
  for (const PoolAccount& pool : pools) {
    if (!wanted[pool.index]) continue;
    std::size_t taken = 0;
    std::size_t looks = 0;
    for (auto entry = pool.by_size.rbegin();
         entry != pool.by_size.rend() && taken < kMostBlockers && looks < kMostLooks;
         ++entry, ++looks) {
      const LeaseRecord& record = leases.at(entry->second);
      if (tenant != nullptr && record.charge.tenant() != tenant) continue;
      if (entry->first == 0) continue;  // it is suspended
      const bool visible = MaySee(user, record.lease);
      blockers.push_back({visible ? record.lease.id.value : 0, visible ? record.lease.owner_pid : 0,
                          record.lease.uid, record.charge.bytes()});
      ++taken;
    }
  }
  std::stable_sort(blockers.begin(), blockers.end(),
                   [](const Blocker& a, const Blocker& b) { return a.size_bytes > b.size_bytes; });
  if (blockers.size() > kMostBlockers) blockers.resize(kMostBlockers);
  return blockers;
}

Shortage Ledger::Impl::ShortageOf(const std::vector<Piece>& pieces, const UserSpec& user) const {
  Shortage shortage{.pieces = pieces, .pools = pools};
  PoolSet wanted;
  for (const Piece& piece : pieces) wanted |= piece.pools;
  shortage.blockers = BlockersOf(wanted, nullptr, user);
  for (const PoolAccount& pool : pools) {
    if (wanted[pool.index] && reserved[pool.index])
      shortage.waiting_before = std::max(shortage.waiting_before, pool.queued);
  }
  return shortage;
}

std::uint64_t Ledger::Impl::ChunkCount() const {
  std::uint64_t count = 0;
  for (const PoolAccount& pool : pools) count += pool.chunks;
  return count;
}

const Lease* Ledger::FindLease(LeaseId lease) const {
  const LeaseRecord* record = impl_->FindLease(lease);
  return record == nullptr ? nullptr : &record->lease;
}

const Session* Ledger::FindSession(SessionId session) const {
  const SessionRecord* record = impl_->FindSession(session);
  return record == nullptr ? nullptr : &record->session;
}

LeaseRecord* Ledger::Impl::FindByName(const UserId& owner, std::string_view name) const {
  const auto user = users.find(AccountOf(owner));
  if (user == users.end()) return nullptr;
  const auto found = user->second.names.find(NameKey(owner.realm, name));
  return found == user->second.names.end() ? nullptr : found->second;
}

const Lease* Ledger::FindByName(const UserId& owner, std::string_view name) const {
  const LeaseRecord* record = impl_->FindByName(owner, name);
  return record == nullptr ? nullptr : &record->lease;
}

Result<Allocated> Ledger::FindGroup(SessionId session, LeaseId lease) const {
  if (impl_->FindSession(session) == nullptr) return SessionEnded(session);
  const LeaseRecord* record = impl_->FindLease(lease);
  if (record == nullptr || record->lease.owner != session) return NotTheCallers(lease);
  return impl_->Answer(*record->group);
}

bool Ledger::MaySee(const UserSpec& user, const Lease& lease) const {
  return impl_->MaySee(user, lease);
}

std::vector<const Lease*> Ledger::Leases(LeaseId after, std::size_t most) const {
  std::vector<const Lease*> all;
  for (auto entry = impl_->leases.upper_bound(after);
       entry != impl_->leases.end() && all.size() < most; ++entry) {
    all.push_back(&entry->second.lease);
  }
  return all;
}

std::vector<const Session*> Ledger::Sessions(SessionId after, std::size_t most) const {
  std::vector<const Session*> all;
  for (auto entry = impl_->sessions.upper_bound(after);
       entry != impl_->sessions.end() && all.size() < most; ++entry) {
    all.push_back(&entry->second.session);
  }
  return all;
}

std::vector<LeaseId> Ledger::GroupLeases(GroupId group) const {
  std::vector<LeaseId> all;
  const auto found = impl_->groups.find(group);
  if (found == impl_->groups.end()) return all;
  for (const LeaseRecord* record : found->second.leases) all.push_back(record->lease.id);
  return all;
}

std::uint32_t Ledger::QueuePosition(GroupId group) const {
  const auto found = impl_->groups.find(group);
  if (found == impl_->groups.end() || found->second.state != State::kQueued) return 0;
  return impl_->queue.Position(found->second);
}

std::vector<Blocker> Ledger::Blockers(GroupId group, const UserSpec& user) const {
  const auto found = impl_->groups.find(group);
  if (found == impl_->groups.end() || found->second.state != State::kQueued) return {};
  const Group& waiting = found->second;
  const Wait& wait = *waiting.wait;
  const bool allowed = waiting.tenant->Allows(PoolKind::kDevice, wait.bytes[0]) &&
                       waiting.tenant->Allows(PoolKind::kHost, wait.bytes[1]);
  if (allowed) return impl_->BlockersOf(wait.pools, nullptr, user);
  // What holds it back is its own tenant's, in whichever pool that is.
  PoolSet kinds;
  for (const PoolAccount& pool : impl_->pools)
    kinds.set(pool.index,
              !waiting.tenant->Allows(pool.spec.kind, wait.bytes[Index(pool.spec.kind)]));
  return impl_->BlockersOf(kinds, waiting.tenant, user);
}

const PoolSpec& Ledger::Pool(PoolIndex pool) const { return impl_->pools[pool].spec; }
PoolUse Ledger::Use(PoolIndex pool) const { return impl_->pools[pool].Use(); }
std::size_t Ledger::pool_count() const { return impl_->pools.size(); }
std::size_t Ledger::session_count() const { return impl_->sessions.size(); }
std::size_t Ledger::lease_count() const { return impl_->leases.size(); }
std::uint64_t Ledger::chunk_count() const { return impl_->ChunkCount(); }

std::vector<TenantUse> Ledger::Tenants() const {
  std::vector<TenantUse> all;
  for (const auto& [name, tenant] : impl_->tenants) {
    all.push_back({tenant.spec, tenant.bytes[Index(PoolKind::kDevice)],
                   tenant.bytes[Index(PoolKind::kHost)], tenant.leases, tenant.sessions});
  }
  return all;
}

std::vector<PoolIndex> Ledger::PoolsToObserve() const {
  std::vector<PoolIndex> all;
  for (const auto& pool : impl_->pools) {
    const PoolUse use = pool.Use();
    const bool confirms =
        pool.spec.confirms_releases && use.releasing + use.unconfirmed + use.quarantined > 0;
    if (confirms || pool.shorts > 0) all.push_back(pool.index);
  }
  return all;
}

std::vector<LeaseId> Ledger::LeasesToObserve(PoolIndex pool) const {
  std::vector<LeaseId> all;
  if (pool >= impl_->pools.size() || impl_->pools[pool].spec.kind != PoolKind::kHost) return all;
  for (const auto& [turn, lease] : impl_->pools[pool].closed) all.push_back(lease);
  return all;
}

Budget Ledger::BudgetOf(PoolIndex index, const UserSpec& user, const TenantSpec& spec) const {
  Budget budget;
  const PoolAccount& pool = impl_->pools[index];
  budget.free = pool.Free();
  budget.waiting = pool.queued;
  PoolSet here;
  here.set(index);
  budget.holders = impl_->BlockersOf(here, nullptr, user);
  for (const auto& [size, id] : pool.by_size) {
    const LeaseRecord& record = impl_->leases.at(id);
    if (IsOwner(user, record.lease)) budget.mine += record.charge.bytes();
  }
  const Bytes limit = pool.spec.kind == PoolKind::kDevice ? spec.device_limit : spec.host_limit;
  const auto tenant = impl_->tenants.find(spec.name);
  bool behind = false;
  if (limit != 0) {
    const Bytes has =
        tenant == impl_->tenants.end() ? 0 : tenant->second.bytes[Index(pool.spec.kind)];
    budget.tenant_left = limit > has ? limit - has : 0;
    behind = tenant != impl_->tenants.end() && tenant->second.held[Index(pool.spec.kind)];
  }
  if (!pool.usable) {
    budget.message = pool.message;
  } else if (impl_->reserved[index]) {
    budget.message = "an earlier request waits for it";
  } else if (behind) {
    budget.message = "an earlier request of the tenant waits for its limit";
  } else {
    const Bytes most = std::min(pool.Grantable(), budget.tenant_left);
    budget.leasable = most / pool.spec.granularity * pool.spec.granularity;
  }
  return budget;
}

Bytes Ledger::LastingBytes(const UserSpec& user) const {
  const auto found = impl_->users.find(AccountOf(user));
  return found == impl_->users.end() ? 0 : found->second.lasting_bytes;
}

Time Ledger::NextDeadline() const {
  Time next = kNever;
  if (!impl_->waits.empty()) next = std::min(next, impl_->waits.begin()->first);
  if (!impl_->graces.empty()) next = std::min(next, impl_->graces.begin()->first);
  if (!impl_->bounds.empty()) next = std::min(next, impl_->bounds.begin()->first);
  if (!impl_->orphans.empty()) next = std::min(next, impl_->orphans.begin()->first);
  return next;
}

std::string Ledger::CheckInvariants() const { return impl_->CheckInvariants(); }

}  // namespace gpulease::ledger
