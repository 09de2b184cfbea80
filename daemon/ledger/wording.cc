// SPDX-License-Identifier: Apache-2.0
#include "daemon/ledger/wording.h"

#include <algorithm>
#include <cstdio>

namespace gpulease::ledger {
namespace {

std::string Number(std::uint64_t number) { return std::to_string(number); }

std::string Seconds(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

PoolSet PoolsOf(const std::vector<Piece>& pieces) {
  PoolSet pools;
  for (const Piece& piece : pieces) pools |= piece.pools;
  return pools;
}

// The pool that a refusal speaks of: of those that would do, the one with the most room.
template <typename Room>
const PoolAccount* MostRoom(const PoolSet& candidates, const std::deque<PoolAccount>& pools,
                            Room room) {
  const PoolAccount* best = nullptr;
  for (const PoolAccount& pool : pools) {
    if (candidates[pool.index] && (best == nullptr || room(pool) > room(*best))) best = &pool;
  }
  return best;
}

// All pieces as `pool` would round them; the largest number there is when it does not fit.
Bytes Asked(const std::vector<Piece>& pieces, const PoolAccount& pool) {
  Bytes sum = 0;
  for (const Piece& piece : pieces) {
    const Bytes size = pool.Rounded(piece.requested).value_or(~Bytes{0});
    sum = CheckedAdd(sum, size).value_or(~Bytes{0});
  }
  return sum;
}

std::string PoolName(const PoolAccount& pool, const PoolSet& candidates, std::string_view most) {
  if (candidates.count() < 2) return pool.spec.name;
  return pool.spec.name + " (the " + std::string(most) + " of " + Number(candidates.count()) + ")";
}

std::string AskedText(const std::vector<Piece>& pieces, Bytes asked) {
  std::string text = "asked " + FormatBytes(asked);
  if (pieces.size() > 1) text += " in " + Number(pieces.size()) + " pieces";
  return text;
}

// "GPU-3f2a: asked 60.0 GiB, 41.2 GiB free, …", with the numbers.
Error Describe(const Shortage& shortage, Code code, Reason reason) {
  const PoolSet candidates = PoolsOf(shortage.pieces);
  const PoolAccount* pool = MostRoom(candidates, shortage.pools, [](const PoolAccount& p) {
    return p.usable ? p.Grantable() : Bytes{0};
  });
  Error error = MakeError(code, reason, "");
  if (pool == nullptr) return error;
  error.requested_bytes = Asked(shortage.pieces, *pool);
  error.available_bytes = pool->usable ? pool->Grantable() : 0;
  error.limit_bytes = pool->Capacity();
  error.blockers = shortage.blockers;
  error.message = PoolName(*pool, candidates, "freest") + ": " +
                  AskedText(shortage.pieces, error.requested_bytes) + ", " +
                  FormatBytes(error.available_bytes) + " free";
  if (!pool->usable) error.message += " as it is not usable now";
  if (!error.blockers.empty()) {
    const Blocker& first = error.blockers.front();
    error.message += ", " + FormatBytes(first.size_bytes) + " more when ";
    error.message += first.lease_id != 0
                         ? "lease " + Number(first.lease_id) + " (pid " +
                               std::to_string(first.pid) + ", uid " + Number(first.uid) + ") ends"
                         : "a lease of another user ends";
  }
  if (pool->outside > 0)
    error.message += ", " + FormatBytes(pool->outside) + " used outside the broker";
  if (shortage.waiting_before > 0) {
    error.message += shortage.waiting_before == 1
                         ? ", 1 request waits for it"
                         : ", " + Number(shortage.waiting_before) + " requests wait for it";
  }
  return error;
}

}  // namespace

std::string_view KindName(PoolKind kind) {
  return kind == PoolKind::kDevice ? "device memory" : "host memory";
}

Error SessionEnded(SessionId session) {
  return MakeError(
      Code::kFailedPrecondition, Reason::kSessionEnded,
      "session " + Number(session.value) + " is over or not the caller's: connect anew");
}

Error BadField(std::string message) {
  return MakeError(Code::kInvalidArgument, Reason::kBadField, std::move(message));
}

Error TooLargeForPools(const std::vector<Piece>& pieces, const std::deque<PoolAccount>& pools) {
  const PoolSet candidates = PoolsOf(pieces);
  const PoolAccount* pool =
      MostRoom(candidates, pools, [](const PoolAccount& p) { return p.Capacity(); });
  Error error = MakeError(Code::kInvalidArgument, Reason::kTooLarge, "");
  if (pool == nullptr) return error;
  error.requested_bytes = Asked(pieces, *pool);
  error.available_bytes = pool->Capacity();
  error.limit_bytes = pool->Capacity();
  error.message = PoolName(*pool, candidates, "largest") + ": " +
                  AskedText(pieces, error.requested_bytes) + ", it never leases more than " +
                  FormatBytes(pool->Capacity()) + " (" + FormatBytes(pool->spec.total) + " less " +
                  FormatBytes(pool->spec.headroom) + " headroom): ask for less";
  return error;
}

Error TooLargeForTenant(const TenantAccount& tenant, PoolKind kind, Bytes asked) {
  Error error = MakeError(Code::kInvalidArgument, Reason::kTooLarge,
                          "tenant " + tenant.spec.name + ": asked " + FormatBytes(asked) + " of " +
                              std::string(KindName(kind)) + ", its limit is " +
                              FormatBytes(tenant.limit(kind)) + ": ask for less");
  error.requested_bytes = asked;
  error.available_bytes = tenant.limit(kind);
  error.limit_bytes = tenant.limit(kind);
  return error;
}

Error TooManyChunks(std::uint64_t asked, std::uint64_t limit) {
  return MakeError(Code::kInvalidArgument, Reason::kTooLarge,
                   "asked memory that takes " + Number(asked) +
                       " descriptors, the daemon may have " + Number(limit) +
                       ": ask for less, or raise its LimitNOFILE or largest_chunk");
}

Error NoChunksLeft(std::uint64_t asked, std::uint64_t used, std::uint64_t limit) {
  return MakeError(Code::kResourceExhausted, Reason::kDescriptorLimit,
                   "asked memory that takes " + Number(asked) + " descriptors, " + Number(used) +
                       " of the daemon's " + Number(limit) +
                       " are in use: retry after any release, or raise its LimitNOFILE");
}

Error NoUsablePool(const std::vector<Piece>& pieces, const std::deque<PoolAccount>& pools) {
  for (const Piece& piece : pieces) {
    const PoolAccount* first = nullptr;
    bool usable = false;
    for (const PoolAccount& pool : pools) {
      if (!piece.pools[pool.index]) continue;
      if (first == nullptr) first = &pool;
      usable = usable || pool.usable;
    }
    if (usable) continue;
    std::string message;
    if (first == nullptr) {
      message = "this machine has no " + std::string(KindName(piece.kind)) + " to lease";
    } else {
      message = first->spec.name;
      if (const std::size_t others = piece.pools.count() - 1; others > 0)
        message += " and " + Number(others) + " more";
      message += ": not usable now";
      if (!first->message.empty()) message += " (" + first->message + ")";
      message += ": retry when it is back";
    }
    return MakeError(Code::kUnavailable, Reason::kGpuUnavailable, std::move(message));
  }
  return MakeError(Code::kUnavailable, Reason::kGpuUnavailable, "not usable now");
}

Error TenantLimit(const TenantAccount& tenant, PoolKind kind, Bytes requested, Bytes charged,
                  bool waiting) {
  const Bytes has = tenant.bytes[Index(kind)];
  Error error = MakeError(Code::kResourceExhausted, Reason::kTenantLimit, "");
  error.requested_bytes = charged;
  error.limit_bytes = tenant.limit(kind);
  error.available_bytes = error.limit_bytes > has ? error.limit_bytes - has : 0;
  error.message = "tenant " + tenant.spec.name + ": charged " + FormatBytes(has) + " of its " +
                  FormatBytes(error.limit_bytes) + " of " + std::string(KindName(kind)) +
                  ", asked " + FormatBytes(requested);
  if (charged != requested) error.message += " (" + FormatBytes(charged) + " in whole pages)";
  error.message += waiting ? ", an earlier request of the tenant waits for the limit" : "";
  error.message += ": retry after it releases something";
  return error;
}

Error MemoryShort(const Shortage& shortage) {
  Error error = Describe(shortage, Code::kUnavailable, Reason::kMemoryShort);
  error.message += ": retry after a release, or wait in the queue";
  return error;
}

Error WaitOver(const Shortage& shortage, Duration waited) {
  Error error = Describe(shortage, Code::kDeadlineExceeded, Reason::kWaitOver);
  error.message = "waited " + Seconds(waited) + ": " + error.message;
  return error;
}

Error DriverMemoryShort(const Shortage& shortage, const Error& driver, Duration tried) {
  Error error = Describe(shortage, Code::kResourceExhausted, Reason::kDriverMemoryShort);
  error.message = "tried for " + Seconds(tried) + ": " + error.message +
                  " by the broker's books, but the driver had none (" + driver.message +
                  "): memory was taken past the broker";
  return error;
}

Error DeviceLost(LeaseId lease, std::string_view pool, std::string_view why) {
  return MakeError(Code::kUnavailable, Reason::kDeviceLost,
                   "lease " + Number(lease.value) + " ended with its GPU: " + std::string(pool) +
                       " is lost (" + std::string(why) +
                       "): unmap it, and lease memory on another GPU");
}

Error MemoryLost(LeaseId lease, std::string_view why) {
  return MakeError(Code::kUnavailable, Reason::kDeviceLost,
                   "lease " + Number(lease.value) + " ended, as its memory is lost (" +
                       std::string(why) + "): unmap it, and lease memory anew");
}

Error StillLoading(const Lease& lease, std::string_view asked) {
  return MakeError(Code::kFailedPrecondition, Reason::kNotSealed,
                   "lease " + std::string(asked) + " is being loaded" +
                       (lease.owner_pid > 0
                            ? " by process " + Number(static_cast<std::uint64_t>(lease.owner_pid))
                            : "") +
                       ": await its contents (AwaitSealed), then open it for reading");
}

Error SealedAgainst(std::string_view lease) {
  return MakeError(Code::kFailedPrecondition, Reason::kSealed,
                   "lease " + std::string(lease) + " is sealed: open it for reading");
}

Error NotTheCallers(LeaseId lease) {
  return MakeError(Code::kNotFound, Reason::kNotOpenable,
                   "lease " + Number(lease.value) + ": there is none, or it is not the caller's");
}

Error NotOpenHere(LeaseId lease) {
  return MakeError(Code::kNotFound, Reason::kNotOpenable,
                   "lease " + std::to_string(lease.value) + " is not open in this session");
}

Error HasFewer(std::uint32_t said, std::uint32_t given) {
  return BadField("have_chunks: said " + std::to_string(said) + ", the session was given " +
                  std::to_string(given));
}

Error NotResident(std::string_view lease) {
  return MakeError(Code::kFailedPrecondition, Reason::kSuspended,
                   "lease " + std::string(lease) +
                       " is suspended, or about to be: retry once its owner has resumed it");
}

Error NotOpenable(std::string_view lease) {
  return MakeError(Code::kPermissionDenied, Reason::kNotOpenable,
                   "lease " + std::string(lease) +
                       ": there is none, or its owner has not opened it to the caller so");
}

Error UserLimit(std::string_view what, std::string_view option, const UserId& user, Bytes has,
                Bytes limit) {
  return MakeError(Code::kResourceExhausted, Reason::kSessionLimit,
                   "uid " + UserText(user) + " has " + Number(has) + " " + std::string(what) +
                       " of at most " + Number(limit) + " (" + std::string(option) +
                       "): retry after some of them end");
}

std::string UserText(const UserId& user) {
  return Number(user.uid) + (user.realm.empty() ? "" : "@" + user.realm);
}

}  // namespace gpulease::ledger
