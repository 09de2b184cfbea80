// SPDX-License-Identifier: Apache-2.0
//
// Allocate: what is wrong with a request, what stands against it, and the group that comes of it.
#include <algorithm>
#include <bit>
#include <limits>

#include "daemon/ledger/impl.h"
#include "daemon/ledger/permissions.h"

namespace gpulease::ledger {
namespace {

constexpr Bytes kLargestAlignment = kGiB;
constexpr std::uint32_t kModeBits = 0666;
constexpr std::size_t kMostSpecs = 64;  // of one request: AllocateRequest.specs

// The pools that `spec` names, or all of its kind.
Result<PoolSet> Candidates(const AllocationSpec& spec, const std::deque<PoolAccount>& pools) {
  PoolSet set;
  for (const PoolIndex index : spec.pools) {
    if (index >= pools.size()) return BadField("there is no pool " + std::to_string(index));
    if (pools[index].spec.kind != spec.kind) {
      return BadField(pools[index].spec.name + " has no " + std::string(KindName(spec.kind)));
    }
    set.set(index);
  }
  if (!spec.pools.empty()) return set;
  for (const PoolAccount& pool : pools) {
    if (pool.spec.kind == spec.kind) set.set(pool.index);
  }
  return set;
}

Status CheckIpc(const AllocationSpec& spec, const PoolSet& candidates,
                const std::deque<PoolAccount>& pools) {
  if (spec.kind != PoolKind::kDevice) return BadField("ipc_handle: is for GPU memory");
  if (spec.reserve != 0)
    return BadField(
        "ipc_handle: what is opened by a handle keeps its size: ask for no reserve_bytes");
  for (const PoolAccount& pool : pools) {
    if (candidates[pool.index] && spec.alignment > pool.spec.granularity) {
      return BadField("alignment_bytes: what is opened by an IPC handle is aligned to " +
                      FormatBytes(pool.spec.granularity) + ": ask for at most that");
    }
  }
  return {};
}

}  // namespace

Result<Ledger::Impl::Request> Ledger::Impl::CheckFields(const AllocateCommand& command,
                                                        const SessionRecord& session) const {
  if (command.specs.empty() || command.specs.size() > kMostSpecs) {
    return BadField("specs: asked " + std::to_string(command.specs.size()) + ", may be 1 to " +
                    std::to_string(kMostSpecs));
  }
  if (command.wait < Duration::zero() || command.wait > options.limits.longest_wait)
    return BadField("wait: longer than the longest that is allowed, or negative");
  const UserSpec& user = session.session.spec.user;
  std::set<std::string_view> names;
  Request request;
  for (const AllocationSpec& spec : command.specs) {
    if (spec.size == 0) return BadField("size_bytes: asked 0, ask for at least 1");
    if (spec.alignment != 0 &&
        (!std::has_single_bit(spec.alignment) || spec.alignment > kLargestAlignment)) {
      return BadField("alignment_bytes: asked " + std::to_string(spec.alignment) +
                      ", may be a power of two up to 1 GiB");
    }
    if ((spec.mode & ~kModeBits) != 0)
      return BadField("mode: only read and write bits have a meaning");
    if (!user.administrator && !IsMember(user, spec.gid))
      return BadField("gid: the caller is not in group " + std::to_string(spec.gid));
    if (spec.death_notice && (spec.kind != PoolKind::kHost || spec.page_size == PageSize::kHuge)) {
      return BadField("death_notice: is for host memory in small pages");
    }
    if (spec.reserve != 0 && (spec.kind != PoolKind::kDevice || spec.reserve < spec.size ||
                              spec.reserve > kLargestReserve)) {
      return BadField("reserve_bytes: of GPU memory, from size_bytes to " +
                      FormatBytes(kLargestReserve));
    }
    if (spec.linger < Duration::zero() || spec.linger > options.limits.longest_linger) {
      return BadField("lifetime: longer than longest_linger_ms of the configuration allows");
    }
    if (!spec.name.empty() && !names.insert(spec.name).second)
      return BadField("name: " + spec.name + " stands twice in the request");
    Result<PoolSet> candidates = Candidates(spec, pools);
    if (!candidates.ok()) return std::move(candidates).error();
    request.pools |= *candidates;
    if (spec.ipc) GPULEASE_RETURN_IF_ERROR(CheckIpc(spec, *candidates, pools));
    request.pieces.push_back({spec.kind, spec.size, *candidates, spec.ipc});
  }
  return request;
}

// Fills nothing in: `request.bytes` and `request.chunks` are what Allocate measured.
Status Ledger::Impl::CheckEver(const Request& request, const TenantAccount& tenant) const {
  // A growth is to stand beside what its parent has.
  const Bytes before = request.parent == nullptr ? 0 : request.parent->lease.size;
  for (const Piece& piece : request.pieces) {
    if (piece.pools.none()) return NoUsablePool(request.pieces, pools);
    const bool fits = std::any_of(pools.begin(), pools.end(), [&](const PoolAccount& pool) {
      if (!piece.pools[pool.index]) return false;
      const std::optional<Bytes> size = pool.Rounded(piece.requested);
      return size && *size <= pool.Capacity() && before <= pool.Capacity() - *size;
    });
    if (!fits) return TooLargeForPools({piece}, pools);
  }
  if (!CouldEverFit(request.pieces, pools)) return TooLargeForPools(request.pieces, pools);
  for (const PoolKind kind : {PoolKind::kDevice, PoolKind::kHost}) {
    const Bytes bytes = request.bytes[Index(kind)];
    const Bytes all = bytes == 0 ? 0 : CheckedAdd(bytes, before).value_or(~Bytes{0});
    if (tenant.limit(kind) != 0 && all > tenant.limit(kind))
      return TooLargeForTenant(tenant, kind, all);
  }
  if (request.chunks > options.limits.chunks)
    return TooManyChunks(request.chunks, options.limits.chunks);
  return {};
}

Status Ledger::Impl::CheckNow(const AllocateCommand& command, const Request& request,
                              const SessionRecord& session) const {
  if (!Reachable(request.pieces, pools)) return NoUsablePool(request.pieces, pools);
  const UserAccount& user = *session.user;
  const UserSpec& caller = session.session.spec.user;
  Bytes text = 0;
  Bytes lasting = 0;
  for (const AllocationSpec& spec : command.specs) {
    text += TextBytes(spec.name, spec.labels);
    if (spec.linger > Duration::zero())
      lasting = CheckedAdd(lasting, spec.size).value_or(~Bytes{0});
    if (!spec.name.empty() && user.names.contains(NameKey(caller.realm, spec.name))) {
      return MakeError(Code::kAlreadyExists, Reason::kNameTaken,
                       "name: the caller has a lease " + spec.name +
                           " already: release it or choose another name");
    }
  }
  const Limits& limits = options.limits;
  // A growth will be no lease of its own.
  if (request.parent == nullptr && (user.leases >= limits.leases_per_user ||
                                    command.specs.size() > limits.leases_per_user - user.leases)) {
    return UserLimit("leases", "leases_per_user", AccountOf(caller), user.leases,
                     limits.leases_per_user);
  }
  if (user.label_bytes >= limits.label_bytes_per_user ||
      text > limits.label_bytes_per_user - user.label_bytes) {
    return UserLimit("bytes of names and labels", "label_bytes_per_user", AccountOf(caller),
                     user.label_bytes, limits.label_bytes_per_user);
  }
  if (lasting > 0 && (user.lasting_bytes >= limits.lasting_bytes_per_user ||
                      lasting > limits.lasting_bytes_per_user - user.lasting_bytes)) {
    return UserLimit("bytes of leases that outlive their owner", "lasting_bytes_per_user",
                     AccountOf(caller), user.lasting_bytes, limits.lasting_bytes_per_user);
  }
  const std::uint64_t used = ChunkCount();
  if (used >= limits.chunks || request.chunks > limits.chunks - used)
    return NoChunksLeft(request.chunks, used, limits.chunks);
  return {};
}

Allocated Ledger::Impl::Retry(Group& group) {
  Allocated answer = Answer(group);
  answer.retry = true;
  // What the owner had closed is handed to it once more.
  for (LeaseRecord* record : group.leases) {
    if (record->lease.state == State::kLeased && record->lease.owner == group.session->session.id &&
        FindHolding(*record, record->lease.owner) == nullptr) {
      AddHolding(*record, *group.session,
                 record->lease.sealed ? Access::kReadOnly : Access::kReadWrite);
    }
  }
  return answer;
}

Group& Ledger::Impl::AddGroup(const AllocateCommand& command, Request request,
                              SessionRecord& session, Time now) {
  const GroupId id{FreshId()};
  Group& group = groups[id];
  group.id = id;
  group.session = &session;
  group.tenant = request.parent == nullptr ? session.tenant : request.parent->group->tenant;
  group.request_id = command.request_id;
  group.wait = std::make_unique<Wait>();
  group.wait->since = now;
  group.wait->brief = command.wait == Duration::zero();
  group.wait->deadline = After(now, group.wait->brief ? options.limits.release_wait : command.wait);
  group.wait->pools = request.pools;
  group.wait->bytes = request.bytes;
  group.wait->pieces = std::move(request.pieces);
  group.leases.reserve(command.specs.size());
  for (std::size_t i = 0; i < command.specs.size(); ++i) {
    const AllocationSpec& spec = command.specs[i];
    const LeaseId lease_id{FreshId()};
    LeaseRecord& record = leases[lease_id];
    record.group = &group;
    record.user = session.user;
    record.place = static_cast<std::uint32_t>(i);
    Lease& lease = record.lease;
    lease.id = lease_id;
    lease.group = id;
    lease.kind = spec.kind;
    lease.requested = spec.size;
    lease.alignment = spec.alignment;
    lease.page_size = spec.page_size;
    lease.owner = session.session.id;
    lease.uid = session.session.spec.user.uid;
    lease.realm = session.session.spec.user.realm;
    lease.gid = spec.gid;
    lease.mode = spec.mode;
    lease.owner_pid = session.session.spec.pid;
    lease.tenant = group.tenant->spec.name;
    lease.name = spec.name;
    lease.labels = spec.labels;
    lease.loading = spec.loading;
    lease.linger = spec.linger;
    generations = std::max(
        generations + 1,
        static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count()));
    lease.generation = generations;
    lease.death_notice = spec.death_notice;
    lease.ipc = spec.ipc;
    // The daemon writes to it: a huge page that a holder gave back may not be had again.
    if (lease.death_notice) lease.page_size = PageSize::kSmall;
    lease.created = now;
    lease.changed = now;
    Bytes rounded = ~Bytes{0};
    for (const PoolAccount& pool : pools) {
      if (!group.wait->pieces[i].pools[pool.index]) continue;
      rounded = std::min(rounded, pool.Rounded(spec.size).value_or(rounded));
      if (lease.alignment == 0) lease.alignment = pool.spec.granularity;
      if (spec.reserve != 0)
        lease.reserved = std::max(lease.reserved, pool.Rounded(spec.reserve).value_or(0));
    }
    lease.size = rounded;
    if (request.parent != nullptr) {
      lease.parent = request.parent->lease.id;
      request.parent->lease.growth = lease_id;
    }
    if (lease.linger > Duration::zero()) {
      record.lasting = rounded;
      session.user->lasting_bytes += rounded;
    }
    group.leases.push_back(&record);
    group.owned += 1;
    session.owned.insert(lease_id);
    session.user->leases += 1;
    session.user->label_bytes += TextBytes(lease);
    if (!lease.name.empty()) session.user->names.emplace(NameKey(lease.realm, lease.name), &record);
  }
  session.session.owned = static_cast<std::uint32_t>(session.owned.size());
  if (!group.request_id.empty()) session.requests.emplace(group.request_id, &group);
  return group;
}

Result<Allocated> Ledger::Impl::Allocate(const AllocateCommand& command, Time now,
                                         Effects& effects) {
  SessionRecord* session = FindSession(command.session);
  if (session == nullptr) return SessionEnded(command.session);
  if (!command.request_id.empty()) {
    const auto known = session->requests.find(command.request_id);
    if (known != session->requests.end()) return Retry(*known->second);
  }
  if (stopping) {
    return MakeError(Code::kUnavailable, Reason::kStopping,
                     "the daemon is about to stop: retry when it is back");
  }
  Result<Request> request = CheckFields(command, *session);
  if (!request.ok()) return std::move(request).error();
  Measure(*request);
  return Admit(command, *std::move(request), *session, now, effects);
}

void Ledger::Impl::Measure(Request& request) const {
  for (const Piece& piece : request.pieces) {
    Bytes bytes = ~Bytes{0};
    std::uint64_t chunks = std::numeric_limits<std::uint64_t>::max();
    for (const PoolAccount& pool : pools) {
      const std::optional<Bytes> size = pool.Rounded(piece.requested);
      if (!piece.pools[pool.index] || !size) continue;
      bytes = std::min(bytes, *size);
      chunks = std::min(chunks, pool.ChunkCount(*size, piece.whole));
    }
    Bytes& sum = request.bytes[Index(piece.kind)];
    sum = CheckedAdd(sum, bytes).value_or(~Bytes{0});
    Bytes& requested = request.requested[Index(piece.kind)];
    requested = CheckedAdd(requested, piece.requested).value_or(~Bytes{0});
    request.chunks = CheckedAdd(request.chunks, chunks).value_or(~std::uint64_t{0});
  }
}

Result<Allocated> Ledger::Impl::Admit(const AllocateCommand& command, Request request,
                                      SessionRecord& session, Time now, Effects& effects) {
  TenantAccount& tenant =
      request.parent == nullptr ? *session.tenant : *request.parent->group->tenant;
  GPULEASE_RETURN_IF_ERROR(CheckEver(request, tenant));
  GPULEASE_RETURN_IF_ERROR(CheckNow(command, request, session));

  const bool can_wait = command.wait > Duration::zero() ||
                        (options.limits.release_wait > Duration::zero() &&
                         std::any_of(pools.begin(), pools.end(), [&](const PoolAccount& pool) {
                           return request.pools[pool.index] && pool.OnItsWay() > 0;
                         }));
  bool limited = false;
  for (const PoolKind kind : {PoolKind::kDevice, PoolKind::kHost}) {
    const Bytes bytes = request.bytes[Index(kind)];
    if (bytes == 0) continue;
    const bool behind = tenant.held[Index(kind)];
    if (!behind && tenant.Allows(kind, bytes)) continue;
    if (!can_wait) return TenantLimit(tenant, kind, request.requested[Index(kind)], bytes, behind);
    limited = true;
  }
  std::optional<Placement> placement;
  if (!limited) placement = Place(request.pieces, pools, reserved);
  if (placement) {
    // Pools that round differently may want more than the least that was reckoned with.
    KindBytes exact{};
    std::uint64_t chunks = 0;
    for (std::size_t i = 0; i < placement->size(); ++i) {
      const PoolAccount& pool = pools[(*placement)[i]];
      const Bytes size = *pool.Rounded(request.pieces[i].requested);
      exact[Index(pool.spec.kind)] += size;
      chunks += pool.ChunkCount(size, request.pieces[i].whole);
    }
    const std::uint64_t used = ChunkCount();
    if (chunks > options.limits.chunks - used)
      return NoChunksLeft(chunks, used, options.limits.chunks);
    for (const PoolKind kind : {PoolKind::kDevice, PoolKind::kHost}) {
      if (tenant.Allows(kind, exact[Index(kind)])) continue;
      if (!can_wait) {
        return TenantLimit(tenant, kind, request.requested[Index(kind)], exact[Index(kind)], false);
      }
      placement.reset();
      break;
    }
  }
  if (!placement && !can_wait)
    return MemoryShort(ShortageOf(request.pieces, session.session.spec.user));
  if (!placement && session.user->waits >= options.limits.waits_per_user) {
    return UserLimit("waiting requests", "waits_per_user", AccountOf(session.session.spec.user),
                     session.user->waits, options.limits.waits_per_user);
  }
  Group& group = AddGroup(command, std::move(request), session, now);
  const GroupId id = group.id;
  if (placement) {
    Grant(group, *placement, now, effects);
  } else {
    Enqueue(group, false);
  }
  Allocated answer;
  answer.group = id;
  for (const LeaseRecord* record : group.leases) answer.leases.push_back(record->lease.id);
  // The tenant is charged more, or waits: what waits may be held back now, and others let past it.
  Serve(now, effects);
  const auto still = groups.find(id);
  if (still != groups.end()) {
    still->second.waited = still->second.state == State::kQueued;
    answer.state = still->second.state;
    if (answer.state == State::kQueued) answer.queue_position = queue.Position(still->second);
  }
  return answer;
}

}  // namespace gpulease::ledger
