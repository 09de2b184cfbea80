// SPDX-License-Identifier: Apache-2.0
//
// The Ledger's refusals in words: what was asked, what stands against it and what helps.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/ledger/accounts.h"

namespace gpulease::ledger {

// What stands against pieces that do not fit now.
struct Shortage {
  const std::vector<Piece>& pieces;
  const std::deque<PoolAccount>& pools;
  std::vector<Blocker> blockers;     // as the asker may see them
  std::uint32_t waiting_before = 0;  // groups
};

Error SessionEnded(SessionId session);
Error BadField(std::string message);
// No pool, or not all pools together, could ever give it.
Error TooLargeForPools(const std::vector<Piece>& pieces, const std::deque<PoolAccount>& pools);
Error TooLargeForTenant(const TenantAccount& tenant, PoolKind kind, Bytes asked);
Error TooManyChunks(std::uint64_t asked, std::uint64_t limit);
Error NoChunksLeft(std::uint64_t asked, std::uint64_t used, std::uint64_t limit);
Error NoUsablePool(const std::vector<Piece>& pieces, const std::deque<PoolAccount>& pools);
// `requested` is as asked, `charged` rounded up; `waiting`: an earlier group of the tenant waits
// for the limit.
Error TenantLimit(const TenantAccount& tenant, PoolKind kind, Bytes requested, Bytes charged,
                  bool waiting);
Error MemoryShort(const Shortage& shortage);
// MemoryShort after a wait.
Error WaitOver(const Shortage& shortage, Duration waited);
// The books have room, the driver has none; `driver` is what it said.
Error DriverMemoryShort(const Shortage& shortage, const Error& driver, Duration tried);
// `why` is what happened to the pool.
Error DeviceLost(LeaseId lease, std::string_view pool, std::string_view why);
// Its lease alone; `why` says who had it.
Error MemoryLost(LeaseId lease, std::string_view why);
Error StillLoading(const Lease& lease, std::string_view asked);
Error SealedAgainst(std::string_view lease);
Error NotTheCallers(LeaseId lease);
Error NotOpenable(std::string_view lease);
Error NotOpenHere(LeaseId lease);
// The session said that it has more chunks than it was given.
Error HasFewer(std::uint32_t said, std::uint32_t given);
// Nobody new opens it now.
Error NotResident(std::string_view lease);
// A user's limit on `what` ("sessions"), which `option` sets ("sessions_per_user").
Error UserLimit(std::string_view what, std::string_view option, const UserId& user, Bytes has,
                Bytes limit);

// "1000", or "1000@REALM" of a user of a container.
std::string UserText(const UserId& user);

std::string_view KindName(PoolKind kind);

}  // namespace gpulease::ledger
