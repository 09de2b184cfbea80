// SPDX-License-Identifier: Apache-2.0
//
// CheckInvariants: everything that is counted, counted again.
#include <algorithm>
#include <unordered_map>

#include "daemon/ledger/impl.h"

namespace gpulease::ledger {
namespace {

struct PoolSums {
  std::array<Bytes, kColumns> columns{};
  std::uint64_t chunks = 0;
  std::uint32_t leases = 0, queued = 0, shorts = 0;
  std::size_t closed = 0;
};
struct AccountSums {
  KindBytes bytes{};
  Bytes label_bytes = 0, lasting_bytes = 0;
  std::uint32_t leases = 0, sessions = 0, waits = 0, openings = 0, owned = 0, open = 0, names = 0;
};

std::string Wrong(const std::string& what, std::uint64_t counted, std::uint64_t is) {
  return what + ": counted " + std::to_string(counted) + ", is " + std::to_string(is);
}

}  // namespace

#define GPULEASE_EXPECT(what, counted, is) \
  if ((counted) != (is)) return Wrong(what, counted, is)

std::string Ledger::Impl::CheckInvariants() const {
  std::vector<PoolSums> pool_sums(pools.size());
  std::unordered_map<const TenantAccount*, AccountSums> tenant_sums;
  std::unordered_map<const UserAccount*, AccountSums> user_sums;
  std::unordered_map<SessionId, AccountSums> session_sums;
  std::size_t releasing = 0;
  std::size_t grouped = 0;
  std::size_t ending_orphans = 0;
  for (const auto& [id, record] : leases) {
    const Lease& lease = record.lease;
    const auto name = [&id = id] { return "lease " + std::to_string(id.value); };
    const bool queued = lease.state == State::kQueued;
    if (queued == static_cast<bool>(record.charge))
      return name() + ": charged while queued, or not";
    if (queued != (lease.pool == kNoPool)) return name() + ": has a pool while queued, or none";
    if (std::count(record.group->leases.begin(), record.group->leases.end(), &record) != 1)
      return name() + ": its group does not know it";
    AccountSums& user = user_sums[record.user];
    user.leases += 1;
    user.label_bytes += TextBytes(lease);
    user.lasting_bytes += record.lasting;
    if ((record.lasting > 0) != (lease.linger > Duration::zero()))
      return name() + ": lasts and is not counted so, or the other way round";
    const bool ending = IsOrphan(lease) && lease.holders.empty() && lease.linger != kForever;
    if (ending != orphans.contains({lease.ends, id})) return name() + ": its time runs, or not";
    ending_orphans += ending ? 1 : 0;
    if (!lease.name.empty()) {
      const auto named = record.user->names.find(NameKey(lease.realm, lease.name));
      const bool has_name = named != record.user->names.end() && named->second == &record;
      const bool wants_name = (lease.owner && lease.state != State::kRevoking) || IsOrphan(lease);
      if (has_name != static_cast<bool>(wants_name)) return name() + ": its name is free, or not";
      user.names += has_name ? 1 : 0;
    }
    if (lease.owner) {
      const auto owner = sessions.find(lease.owner);
      if (owner == sessions.end()) return name() + ": its owner's session is over";
      if (!owner->second.owned.contains(id)) return name() + ": its owner does not know it";
      AccountSums& sums = session_sums[lease.owner];
      sums.owned += 1;
      sums.bytes[Index(lease.kind)] += record.charge.bytes();
    }
    for (const Holding& holding : lease.holders) {
      const auto holder = sessions.find(holding.session);
      if (holder == sessions.end()) return name() + ": the session of a holder is over";
      session_sums[holding.session].open += 1;
      if (holding.session == lease.owner) continue;
      if (!holder->second.opened.contains(id)) return name() + ": a holder does not know it";
      user_sums[holder->second.user].openings += 1;
    }
    for (const Holding& holding : lease.holders) {
      if (holding.chunks > lease.chunks.size()) return name() + ": a holder has more than it has";
    }
    if (lease.growth) {
      const auto growth = leases.find(lease.growth);
      if (growth == leases.end() || growth->second.lease.parent != id)
        return name() + ": what it grows by does not know it, or is gone";
      if (growth->second.lease.owner != lease.owner) return name() + ": another one grows it";
    }
    if (IsGrowth(lease) && lease.owner) {
      const auto parent = leases.find(lease.parent);
      if (parent == leases.end() || parent->second.lease.growth != id)
        return name() + ": its parent does not know it, or is gone";
    }
    if (lease.reserved != 0 && lease.size > lease.reserved)
      return name() + ": larger than what it has reserved";
    if (lease.target != 0 && lease.state < State::kDestroying) {
      Bytes left = 0;
      for (std::uint32_t i = 0; i < OpenChunks(lease); ++i) left += lease.chunks[i];
      if (left != lease.target || left >= lease.size)
        return name() + ": shrinks to what is no whole number of its chunks";
      if (std::none_of(lease.holders.begin(), lease.holders.end(),
                       [&](const Holding& holding) { return holding.chunks > OpenChunks(lease); }))
        return name() + ": has what nobody has mapped and is to go";
    }
    const bool made = lease.state >= State::kOffered && lease.state <= State::kReleased;
    if (made && lease.residence != Residence::kResident) {
      const bool suspended = lease.residence == Residence::kSuspended;
      if (suspended != lease.chunks.empty()) return name() + ": suspended with chunks, or without";
      if ((lease.residence == Residence::kSuspending) != (lease.suspended == 0))
        return name() + ": does not know the size that it had, or has it still";
      if (lease.linger > Duration::zero() || lease.target != 0 || lease.kind != PoolKind::kDevice)
        return name() + ": suspended, and lasts, shrinks or is host memory";
      if (!suspended && !lease.owner) return name() + ": suspending or resuming without its owner";
      if (!suspended && std::all_of(lease.holders.begin(), lease.holders.end(),
                                    [](const Holding& holding) { return holding.chunks == 0; }))
        return name() + ": suspended, and has what nobody has mapped";
      for (const Holding& holding : lease.holders) {
        if (holding.session == lease.owner) continue;
        if (!holding.takes_part) return name() + ": suspended, and a holder takes no part";
        if (lease.residence == Residence::kResuming && holding.chunks > 0)
          return name() + ": is being filled, and a holder has it";
      }
    } else if (lease.suspended != 0 && lease.residence == Residence::kResident) {
      return name() + ": resident, and waits for a size";
    }
    if (!made && !lease.holders.empty()) return name() + ": has holders and is not made, or over";
    if (made && lease.holders.empty() && !lease.owner && !IsOrphan(lease))
      return name() + ": nobody has a right to it";
    if (lease.state == State::kOffered && !lease.owner) return name() + ": offered to nobody";
    if (lease.state == State::kReleased && lease.owner) return name() + ": released, has an owner";
    if (lease.state >= State::kDestroying && lease.owner) return name() + ": over, has an owner";
    if (queued) continue;
    PoolSums& sums = pool_sums[lease.pool];
    const bool closed = lease.state == State::kReleasing || lease.state == State::kUnconfirmed;
    const Bytes bytes = closed ? lease.unconfirmed_size : lease.size;
    GPULEASE_EXPECT(name() + " charged", bytes, record.charge.bytes());
    GPULEASE_EXPECT(name() + " chunks", closed ? 0 : lease.chunks.size(), record.charge.chunks());
    Bytes chunks = 0;
    for (const Bytes chunk : lease.chunks) chunks += chunk;
    GPULEASE_EXPECT(name() + " size", chunks, lease.size);
    sums.columns[static_cast<std::size_t>(ColumnOf(lease.state, lease.quarantined))] += bytes;
    sums.chunks += record.charge.chunks();
    sums.leases += 1;
    sums.closed += closed ? 1 : 0;
    releasing += lease.state == State::kReleasing ? 1 : 0;
    AccountSums& tenant = tenant_sums[record.charge.tenant()];
    tenant.bytes[Index(lease.kind)] += bytes;
    tenant.leases += 1;
  }
  for (const auto& [id, group] : groups) {
    const auto name = [&id = id] { return "group " + std::to_string(id.value); };
    if (group.leases.empty()) return name() + ": has no leases";
    grouped += group.leases.size();
    std::uint32_t owned = 0;
    for (const LeaseRecord* record : group.leases) owned += record->lease.owner ? 1 : 0;
    GPULEASE_EXPECT(name() + " owned", owned, group.owned);
    if ((owned > 0) != (group.session != nullptr)) return name() + ": has a session, or none";
    if (group.state != State::kQueued) continue;
    user_sums[group.session->user].waits += 1;
    if (!waits.contains({group.wait->deadline, id})) return name() + ": waits without an end";
    for (const PoolAccount& pool : pools) {
      pool_sums[pool.index].queued += group.wait->pools[pool.index] ? 1 : 0;
      pool_sums[pool.index].shorts += group.wait->unobserved[pool.index] ? 1 : 0;
    }
  }
  GPULEASE_EXPECT("leases in groups", grouped, leases.size());
  GPULEASE_EXPECT("bounds", releasing, bounds.size());
  GPULEASE_EXPECT("orphans", ending_orphans, orphans.size());
  std::size_t lost = 0;
  for (const auto& [id, record] : sessions) {
    const auto name = [&id = id] { return "session " + std::to_string(id.value); };
    const AccountSums& sums = session_sums[id];
    GPULEASE_EXPECT(name() + " owned", sums.owned, record.session.owned);
    GPULEASE_EXPECT(name() + " open", sums.open, record.session.open);
    GPULEASE_EXPECT(name() + " device bytes", sums.bytes[0], record.session.device_bytes);
    GPULEASE_EXPECT(name() + " host bytes", sums.bytes[1], record.session.host_bytes);
    user_sums[record.user].sessions += 1;
    tenant_sums[record.tenant].sessions += 1;
    lost += record.session.connected ? 0 : 1;
  }
  GPULEASE_EXPECT("graces", lost, graces.size());
  std::size_t waiting = 0;
  for (const auto& [id, user] : users) {
    const auto name = [&id = id] { return "uid " + UserText(id); };
    const AccountSums& sums = user_sums[&user];
    GPULEASE_EXPECT(name() + " sessions", sums.sessions, user.sessions);
    GPULEASE_EXPECT(name() + " leases", sums.leases, user.leases);
    GPULEASE_EXPECT(name() + " waits", sums.waits, user.waits);
    GPULEASE_EXPECT(name() + " openings", sums.openings, user.openings);
    GPULEASE_EXPECT(name() + " label bytes", sums.label_bytes, user.label_bytes);
    GPULEASE_EXPECT(name() + " lasting bytes", sums.lasting_bytes, user.lasting_bytes);
    GPULEASE_EXPECT(name() + " names", sums.names, user.names.size());
    if (user.unused()) return name() + ": kept without need";
    waiting += user.waits;
  }
  GPULEASE_EXPECT("waits", waiting, waits.size());
  for (const auto& [name, tenant] : tenants) {
    const AccountSums& sums = tenant_sums[&tenant];
    GPULEASE_EXPECT("tenant " + name + " device bytes", sums.bytes[0], tenant.bytes[0]);
    GPULEASE_EXPECT("tenant " + name + " host bytes", sums.bytes[1], tenant.bytes[1]);
    GPULEASE_EXPECT("tenant " + name + " leases", sums.leases, tenant.leases);
    GPULEASE_EXPECT("tenant " + name + " sessions", sums.sessions, tenant.sessions);
    if (tenant.unused()) return "tenant " + name + ": kept without need";
  }
  for (const PoolAccount& pool : pools) {
    const PoolSums& sums = pool_sums[pool.index];
    const auto name = [&] { return pool.spec.name; };
    for (std::size_t column = 0; column < kColumns; ++column) {
      GPULEASE_EXPECT(name() + " column " + std::to_string(column), sums.columns[column],
                      pool.columns[column]);
    }
    GPULEASE_EXPECT(name() + " chunks", sums.chunks, pool.chunks);
    GPULEASE_EXPECT(name() + " leases", sums.leases, pool.leases);
    GPULEASE_EXPECT(name() + " by size", sums.leases, pool.by_size.size());
    GPULEASE_EXPECT(name() + " queued", sums.queued, pool.queued);
    GPULEASE_EXPECT(name() + " shorts", sums.shorts, pool.shorts);
    GPULEASE_EXPECT(name() + " closed", sums.closed, pool.closed.size());
    const PoolUse use = pool.Use();
    GPULEASE_EXPECT(name() + " sum",
                    use.leased + use.offered + use.releasing + use.unconfirmed + use.quarantined +
                        use.outside + use.free,
                    use.total + use.overcommitted);
  }
  GPULEASE_EXPECT("descriptors over the limit", ChunkCount() > options.limits.chunks ? 1u : 0u, 0u);
  return "";
}

#undef GPULEASE_EXPECT

}  // namespace gpulease::ledger
