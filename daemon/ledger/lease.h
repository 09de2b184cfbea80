// SPDX-License-Identifier: Apache-2.0
//
// Lease: the right to a list of chunks, as the ledger has it and shows it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "daemon/ledger/ids.h"

namespace gpulease::ledger {

enum class PoolKind { kDevice, kHost };

enum class PageSize : std::uint8_t { kAuto, kSmall, kHuge };
enum class Access : std::uint8_t { kReadOnly, kReadWrite };

// Whose users a number stands for: empty is the machine itself; else a container, which has users
// of its own, whatever their numbers. One that begins with kUnknownRealm is of a process that the
// daemon cannot place, and of no other.
using Realm = std::string;
inline constexpr char kUnknownRealm = '?';

// Of the handle by which others open a lease with `ipc`.
inline constexpr std::size_t kIpcHandleBytes = 64;

// Of a linger: until it is released.
inline constexpr Duration kForever = Duration::max();

enum class State : std::uint8_t {
  kQueued,
  kMaking,
  kOffered,
  kLeased,
  kRevoking,
  kReleased,
  kDestroying,
  kReleasing,
  kUnconfirmed
};

// Where a lease's contents are.
enum class Residence : std::uint8_t {
  kResident,    // in its chunks
  kSuspending,  // in its chunks, which are to go when nobody has any of them
  kSuspended,   // with its owner: it has no chunks
  kResuming     // with its owner, and it has chunks that he is about to fill
};

struct Holding {
  SessionId session;
  Access access = Access::kReadWrite;
  bool taken = false;  // the client has the descriptors
  // So many of the lease's chunks, from the first, it may have mapped.
  std::uint32_t chunks = 0;
  bool takes_part = false;  // it lets go when the lease is suspended
};

// One lease as it is now. References stay valid until the next command.
struct Lease {
  LeaseId id;
  GroupId group;
  std::uint64_t generation = 1;
  State state = State::kQueued;
  PoolKind kind = PoolKind::kDevice;
  PoolIndex pool = kNoPool;  // kNoPool while queued
  Bytes requested = 0;
  Bytes size = 0;              // sum of chunks; while queued, the rounded size
  Bytes unconfirmed_size = 0;  // kReleasing on: what the driver has not shown as free yet
  Bytes alignment = 0;
  std::vector<Bytes> chunks;             // sizes
  PageSize page_size = PageSize::kAuto;  // as made, once Made() said so
  SessionId owner;                       // none once the owner let go or ended
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  Realm realm;  // of both
  std::uint32_t mode = 0600;
  std::int32_t owner_pid = 0;
  std::string tenant;
  std::string name;
  std::map<std::string, std::string> labels;
  std::vector<Holding> holders;  // the owner too, while it has it open
  bool quarantined = false;
  // Its owner fills it: nobody else may open it before it is sealed, and it ends with its owner.
  bool loading = false;
  bool sealed = false;                           // opens for reading alone, for good
  std::string content_tag;                       // what its sealer says of the contents
  std::shared_ptr<const std::string> directory;  // of a sealed one, as its sealer gave it
  // How long it outlives the last session that has a right to it. While its owner is gone it is an
  // orphan: kLeased and without owner, its name its own.
  Duration linger{};
  Time ends = kNever;  // of an orphan that nobody has open
  Bytes reserved = 0;  // the addresses of an elastic lease; 0: it keeps its size
  // What it shrinks to when no session has more of it mapped; 0: it does not shrink.
  Bytes target = 0;
  Residence residence = Residence::kResident;
  Bytes suspended = 0;  // kSuspended and kResuming: the size that it has once it is resident
  LeaseId growth;       // the lease that it grows by, while that waits or is made
  // The growth that was its last, and which chunk of it was that one's first.
  LeaseId grown;
  std::uint32_t grown_chunk = 0;
  // Rises when the lease has other chunks than before.
  std::uint32_t revision = 0;
  // Of a growth, and of what was cut off: the lease that it is of.
  LeaseId parent;
  bool death_notice = false;
  // One block in a process of its own, which others open by a handle unseen: see LoseLease.
  bool ipc = false;
  Time created{};
  Time changed{};  // of the last change of state
};

inline bool IsGrowth(const Lease& lease) {
  return lease.parent && lease.state < State::kDestroying;
}

// How many of its chunks a session may map: without those that are about to go, and of one that is
// not resident those of its owner alone.
inline std::uint32_t OpenChunks(const Lease& lease, SessionId session = {}) {
  if (lease.residence != Residence::kResident && !(session && session == lease.owner)) return 0;
  std::uint32_t count = 0;
  Bytes size = 0;
  while (count < lease.chunks.size() && (lease.target == 0 || size < lease.target))
    size += lease.chunks[count++];
  return count;
}

// Whether it goes on when its owner lets go of it.
inline bool Lasts(const Lease& lease) {
  return lease.state == State::kLeased && lease.linger > Duration::zero() &&
         (lease.sealed || !lease.loading);
}

inline bool IsOrphan(const Lease& lease) {
  return lease.state == State::kLeased && !lease.owner && lease.linger > Duration::zero();
}

// A lease with all that is needed to have it again in another Ledger.
struct RestoredLease {
  Lease lease;
  std::uint32_t place = 0;  // among the leases of its group
  bool exposed = false;     // a living process may map it without holding it any more
  // How many of its chunks, from the first, that process may have; 0 of an exposed lease: all.
  std::uint32_t exposed_chunks = 0;
  std::string request_id;
  // Its chunks are not open here, and are kept elsewhere until somebody decides: see SetAside().
  bool aside = false;
};

}  // namespace gpulease::ledger
