// SPDX-License-Identifier: Apache-2.0
//
// Who stands behind a lease: its user, its tenant, its session; and the leases that were asked for
// together. Records refer to each other by pointer; the Ledger's maps own them and never move them.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/ledger/charge.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/pool_account.h"

namespace gpulease::ledger {

struct Group;
struct LeaseRecord;

// By PoolKind.
inline constexpr std::size_t kKinds = 2;
inline constexpr std::size_t Index(PoolKind kind) { return static_cast<std::size_t>(kind); }
using KindBytes = std::array<Bytes, kKinds>;

// What a name is kept under: no name has a slash.
inline std::string NameKey(const Realm& realm, std::string_view name) {
  return realm + "/" + std::string(name);
}
// What keeping a lease's name and labels costs: their bytes, and what holds each label.
inline Bytes TextBytes(const std::string& name, const std::map<std::string, std::string>& labels) {
  constexpr Bytes kEach = 64;
  Bytes bytes = name.size();
  for (const auto& [key, value] : labels) bytes += key.size() + value.size() + kEach;
  return bytes;
}
inline Bytes TextBytes(const Lease& lease) {
  return TextBytes(lease.name, lease.labels) + lease.content_tag.size() +
         (lease.directory ? lease.directory->size() : 0);
}

struct UserAccount {
  std::uint32_t sessions = 0;
  std::uint32_t leases = 0;    // until their last byte is free, queued ones too
  std::uint32_t waits = 0;     // queued groups
  std::uint32_t openings = 0;  // of leases that the opening session does not own
  Bytes label_bytes = 0;       // TextBytes of its leases
  Bytes lasting_bytes = 0;     // of those that linger
  std::map<std::string, LeaseRecord*, std::less<>> names;  // by NameKey; not released

  bool unused() const { return sessions == 0 && leases == 0; }
};

struct TenantAccount {
  TenantSpec spec;
  KindBytes bytes{};
  std::uint32_t leases = 0;  // charged
  std::uint32_t sessions = 0;
  // WaitQueue's: those that are no heads in the order in which they came, and how many are heads.
  std::list<Group*> waiting;
  std::uint32_t heads = 0;
  std::list<TenantAccount*>::iterator in_ring;  // valid while `waiting` is not empty
  std::array<bool, kKinds> held{};              // a queued group waits for the limit of this kind

  Bytes limit(PoolKind kind) const {
    return kind == PoolKind::kDevice ? spec.device_limit : spec.host_limit;
  }
  bool Allows(PoolKind kind, Bytes more) const {
    if (limit(kind) == 0 || more == 0) return true;
    const std::optional<Bytes> sum = CheckedAdd(bytes[Index(kind)], more);
    return sum && *sum <= limit(kind);
  }
  bool unused() const { return sessions == 0 && leases == 0; }
};

struct SessionRecord {
  Session session;
  UserAccount* user = nullptr;
  TenantAccount* tenant = nullptr;
  std::set<LeaseId> owned;
  std::set<LeaseId> opened;  // and does not own
  std::map<std::string, Group*, std::less<>> requests;
};

// What placement needs to know of one lease of a group.
struct Piece {
  PoolKind kind = PoolKind::kDevice;
  Bytes requested = 0;
  PoolSet pools;       // that will do, usable or not
  bool whole = false;  // in one chunk, whatever its size
};

// Kept while a group is queued or being made.
struct Wait {
  std::vector<Piece> pieces;  // one a lease, in their order
  PoolSet pools;              // of all pieces
  KindBytes bytes{};          // at least this much will be charged
  Time since{};
  Time deadline{};
  bool brief = false;  // its owner did not ask to wait: see Limits::release_wait
  // The driver had no memory though the books had room.
  std::optional<Error> shortage;
  Time first_shortage = kNever;
  PoolSet unobserved;  // pools that it waits to be observed
  // WaitQueue's.
  bool head = false;
  std::list<Group*>::iterator place;
};

struct Group {
  GroupId id;
  State state = State::kQueued;  // kQueued, kMaking, or kOffered: made
  bool waited = false;           // its owner was told that it is queued
  bool cancelled = false;        // kMaking, and nobody wants it any more
  std::uint32_t owned = 0;       // leases that still have their owner
  SessionRecord* session = nullptr;
  TenantAccount* tenant = nullptr;
  std::vector<LeaseRecord*> leases;  // those that exist, in the order of the specs
  std::string request_id;
  std::unique_ptr<Wait> wait;
};

struct LeaseRecord {
  Lease lease;
  Group* group = nullptr;
  UserAccount* user = nullptr;
  std::uint32_t place = 0;           // among the leases that were asked for together
  bool aside = false;                // see Ledger::SetAside
  bool exposed = false;              // a living process may map it without holding it any more
  std::uint32_t exposed_chunks = 0;  // how many of its chunks, from the first; 0: all
  Bytes lasting = 0;                 // of the user's lasting_bytes
  std::uint64_t closed_turn = 0;     // its key in PoolAccount::closed
  Charge charge;                     // empty while queued
};

}  // namespace gpulease::ledger
