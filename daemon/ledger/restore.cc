// SPDX-License-Identifier: Apache-2.0
//
// What outlives the ledger: leases as another ledger can have them again.
#include <algorithm>
#include <set>

#include "daemon/ledger/impl.h"

namespace gpulease::ledger {
namespace {

Error Senseless(std::string message) {
  return MakeError(Code::kInvalidArgument, Reason::kBadField, std::move(message));
}

constexpr std::uint64_t kIdEnd = std::uint64_t{1} << 53;

bool IsId(std::uint64_t value) { return value != 0 && value < kIdEnd; }

}  // namespace

std::vector<LeaseId> Ledger::Impl::TakeChanges() {
  std::vector<LeaseId> taken = std::move(changes);
  changes.clear();
  std::sort(taken.begin(), taken.end());
  taken.erase(std::unique(taken.begin(), taken.end()), taken.end());
  return taken;
}

std::optional<RestoredLease> Ledger::Impl::Keepable(LeaseId id) const {
  const auto found = leases.find(id);
  if (found == leases.end()) return std::nullopt;
  const LeaseRecord& record = found->second;
  const Lease& lease = record.lease;
  if (IsGrowth(lease)) return std::nullopt;
  const bool is_held = lease.state >= State::kOffered && lease.state < State::kDestroying;
  const bool watched =
      lease.state >= State::kDestroying && (record.aside || lease.kind == PoolKind::kHost);
  if (!is_held && !watched) return std::nullopt;
  RestoredLease kept;
  kept.lease = lease;
  kept.place = record.place;
  kept.exposed = record.exposed;
  kept.exposed_chunks = record.exposed_chunks;
  kept.aside = record.aside;
  if (lease.owner) kept.request_id = record.group->request_id;
  return kept;
}

Status Ledger::Impl::RestoreSession(SessionId id, SessionSpec spec, Time now) {
  if (!IsId(id.value) || sessions.contains(id))
    return Senseless("session " + std::to_string(id.value) + " is none or is known already");
  AddSession(id, std::move(spec), now);
  return {};
}

Status Ledger::Impl::CheckRestored(const RestoredLease& restored) const {
  const Lease& lease = restored.lease;
  if (!IsId(lease.id.value) || !IsId(lease.group.value))
    return Senseless("its id or its group's is none");
  if (leases.contains(lease.id)) return Senseless("it is known already");
  if (lease.pool >= pools.size() || pools[lease.pool].spec.kind != lease.kind)
    return Senseless("its pool is none of its kind");
  if (lease.state < State::kOffered) return Senseless("it was not made");
  const PoolAccount& pool = pools[lease.pool];
  Bytes size = 0;
  for (const Bytes chunk : lease.chunks) {
    const std::optional<Bytes> sum = CheckedAdd(size, chunk);
    if (chunk == 0 || !sum) return Senseless("its chunks have no sensible size");
    size = *sum;
  }
  const bool suspended = lease.residence == Residence::kSuspended;
  if (lease.chunks.empty() != suspended || size % pool.spec.granularity != 0)
    return Senseless("its chunks do not fit its pool");
  if ((suspended || lease.residence == Residence::kResuming) != (lease.suspended != 0) ||
      (lease.suspended != 0 && pool.Rounded(lease.suspended) != lease.suspended) ||
      (lease.residence == Residence::kResuming && lease.suspended != size))
    return Senseless("it was suspended with no sensible size");
  if (lease.residence != Residence::kResident &&
      (lease.kind != PoolKind::kDevice || lease.linger != Duration::zero() || lease.target != 0))
    return Senseless("it is suspended and cannot be");
  if (!restored.aside && lease.chunks.size() > options.limits.chunks - ChunkCount())
    return NoChunksLeft(lease.chunks.size(), ChunkCount(), options.limits.chunks);
  if (lease.reserved != 0 &&
      (lease.kind != PoolKind::kDevice || lease.reserved < size || lease.target > size))
    return Senseless("its size does not fit what it has reserved");
  if (lease.ipc && (lease.kind != PoolKind::kDevice || lease.chunks.size() != 1))
    return Senseless("what is opened by a handle is one block of a GPU");
  if (lease.linger < Duration::zero()) return Senseless("it lingers for less than nothing");
  std::set<SessionId> holders;
  for (const Holding& holding : lease.holders) {
    if (!holders.insert(holding.session).second) return Senseless("a session holds it twice");
  }
  if (const auto group = groups.find(lease.group); group != groups.end()) {
    if (group->second.state != State::kOffered || group->second.leases.empty() ||
        group->second.leases.front()->lease.uid != lease.uid ||
        group->second.leases.front()->lease.realm != lease.realm)
      return Senseless("its group is another one's");
  }
  return {};
}

Group& Ledger::Impl::RestoreGroup(const RestoredLease& restored, SessionRecord* owner) {
  const auto [found, added] = groups.try_emplace(restored.lease.group);
  Group& group = found->second;
  if (added) {
    group.id = restored.lease.group;
    group.state = State::kOffered;
    group.tenant = owner != nullptr ? owner->tenant : &tenants[restored.lease.tenant];
    if (owner == nullptr) group.tenant->spec.name = restored.lease.tenant;
  }
  if (owner != nullptr && group.session == nullptr) {
    group.session = owner;
    group.request_id = restored.request_id;
    if (!group.request_id.empty()) owner->requests.emplace(group.request_id, &group);
  }
  return group;
}

Status Ledger::Impl::RestoreLease(RestoredLease restored, Time now, Effects& effects) {
  GPULEASE_RETURN_IF_ERROR(CheckRestored(restored));
  const State state = restored.lease.state;
  const bool closed = restored.aside || state >= State::kDestroying;
  SessionRecord* owner =
      closed || state == State::kReleased ? nullptr : FindSession(restored.lease.owner);
  // A revoked lease has an owner only while he has it open.
  if (state == State::kRevoking &&
      std::none_of(
          restored.lease.holders.begin(), restored.lease.holders.end(),
          [&](const Holding& holding) { return holding.session == restored.lease.owner; })) {
    owner = nullptr;
  }
  Group& group = RestoreGroup(restored, owner);
  if (owner != nullptr && group.session != owner) owner = nullptr;

  LeaseRecord& record = leases[restored.lease.id];
  record.group = &group;
  record.place = restored.place;
  record.aside = restored.aside;
  record.exposed = restored.exposed;
  record.exposed_chunks = restored.exposed_chunks;
  record.lease = std::move(restored.lease);
  Lease& lease = record.lease;
  const auto after =
      std::find_if(group.leases.begin(), group.leases.end(),
                   [&](const LeaseRecord* other) { return other->place > record.place; });
  group.leases.insert(after, &record);
  record.user = &users[AccountOf({lease.uid, lease.realm})];
  record.user->leases += 1;
  // A name that was given away while this lease was set aside stays away.
  if (record.user->names.contains(NameKey(lease.realm, lease.name))) lease.name.clear();
  record.user->label_bytes += TextBytes(lease);
  generations = std::max(generations, lease.generation);
  lease.size = 0;
  for (const Bytes chunk : lease.chunks) lease.size += chunk;
  lease.tenant = group.tenant->spec.name;
  lease.quarantined = lease.quarantined || record.aside;
  record.charge =
      Charge(pools[lease.pool], *group.tenant, owner, lease.id, lease.size, lease.chunks.size());
  const std::vector<Holding> holders = std::exchange(lease.holders, {});
  const Time ends = std::exchange(lease.ends, kNever);
  const Duration linger = std::exchange(lease.linger, {});
  const bool had_owner = static_cast<bool>(lease.owner);
  lease.owner = {};
  lease.growth = {};
  lease.grown = {};
  lease.parent = {};
  record.exposed = record.exposed && !lease.chunks.empty();
  // Without a chunk that goes there is nothing to wait for.
  if (OpenChunks(lease) == lease.chunks.size()) lease.target = 0;
  if (closed) {
    record.charge.CloseChunks();
    if (!holders.empty()) NoticeDeath(record, effects);
    AwaitBytes(record, now, effects);
    return {};
  }

  if (owner != nullptr) {
    lease.owner = owner->session.id;
    owner->owned.insert(lease.id);
    owner->session.owned = static_cast<std::uint32_t>(owner->owned.size());
    group.owned += 1;
    if (!lease.name.empty() && state != State::kRevoking)
      record.user->names.emplace(NameKey(lease.realm, lease.name), &record);
  }
  for (const Holding& holding : holders) {
    SessionRecord* holder = FindSession(holding.session);
    if (holder == nullptr) {
      NoticeDeath(record, effects);
      continue;
    }
    AddHolding(record, *holder, holding.access);
    Holding& added = lease.holders.back();
    added.taken = holding.taken;
    // What an older daemon kept does not say how many: all.
    const auto all = static_cast<std::uint32_t>(lease.chunks.size());
    const bool unsaid = holding.chunks == 0 && lease.residence == Residence::kResident;
    added.chunks = unsaid ? all : std::min(holding.chunks, all);
    added.takes_part = holding.takes_part;
    // Of one that is being filled they have nothing yet.
    if (lease.residence == Residence::kResuming && holding.session != lease.owner) added.chunks = 0;
  }
  // What lasts outlives its owner, who may have ended meanwhile; what he was loading does not.
  const bool lasts = linger > Duration::zero() &&
                     (owner != nullptr ? state <= State::kLeased
                                       : state == State::kLeased &&
                                             (!had_owner || lease.sealed || !lease.loading));
  const Time changed = lease.changed;
  SetState(record,
           owner == nullptr && state != State::kRevoking && !lasts ? State::kReleased : state, now);
  lease.changed = changed;
  if (owner == nullptr || FindHolding(record, lease.owner) == nullptr)
    CallOffSuspend(record, effects);
  if (lasts) {
    lease.linger = linger;
    record.lasting = lease.size;
    record.user->lasting_bytes += record.lasting;
    if (owner == nullptr && !lease.name.empty())
      record.user->names.emplace(NameKey(lease.realm, lease.name), &record);
    if (IsOrphan(lease) && lease.holders.empty() && linger != kForever && ends != kNever) {
      lease.ends = ends;
      orphans.emplace(ends, lease.id);
    }
  }
  Settle(record, now, effects);
  return {};
}

}  // namespace gpulease::ledger
