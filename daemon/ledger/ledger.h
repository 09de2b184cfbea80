// SPDX-License-Identifier: Apache-2.0
//
// Ledger: who holds how much of each GPU and of the host's memory, who waits, and for what.
//
// It decides and counts. It makes no driver call, no RPC and no log line, never waits, and takes
// the time as an argument, so that a day of traffic replays in a test. What has to be done outside
// comes out as Effects, in order; executors carry them out and report back (Made, MakeFailed,
// Destroyed, Observe).
//
// Invariant, checked by CheckInvariants(): for each pool,
//   leased + offered + releasing + unconfirmed + quarantined + outside + free =
//   total + overcommitted,
// every counter equals the sum over the leases, and a tenant is charged exactly for the bytes of
// its leases, until the last of them is free. Debug builds check after every command while there
// are at most 64 leases and sessions; the check is linear, so beyond that they do so once in 16
// commands a lease.
//
// A lease's life:
//
//   kQueued -> kMaking -> kOffered -> kLeased -> (kRevoking) -> kReleased -> kDestroying ->
//   kReleasing -> gone
//
//   kMaking:     charged; the executor makes its chunks (shown to users as offered)
//   kOffered:    chunks are made; the owner does not have all descriptors yet
//   kRevoking:   an administrator asked the holders to let go
//   kReleased:   the owner let go or died; others hold it open
//   kDestroying: nobody has rights; the executor closes the daemon's descriptors (shown as
//                releasing)
//   kReleasing:  closed; the driver does not show the bytes as free yet; kUnconfirmed after
//                `release_bound`
//
// An elastic lease has reserved addresses for more than it has, and grows and shrinks within them
// by whole chunks at its end. What it grows by is a lease of its own, which asks, waits and is made
// like any other and becomes a part of its parent when it is made; it ends with its parent's owner.
// What it shrinks by becomes a lease without rights, kDestroying, when nobody has it mapped any
// more.
//
// A lease is suspended by a shrink to nothing, in which its owner is the last to let go, and
// resumed by a growth to its former size, of which others get nothing before its owner has filled
// it. Between the two it has no chunks and is charged nothing.
//
// A lease whose rights ended while a living process may still map it counts as quarantined from
// kDestroying on, in place of releasing and unconfirmed, until the driver shows the bytes.
//
// Fairness: requests that must wait are served in rounds over tenants, first come first served
// within a tenant. The first in that order that its tenant's limit does not hold back reserves
// every pool that it could use: nobody behind it takes memory of those pools, however small, and it
// stays the first for them until it is served or over. A request that comes while others wait takes
// no memory of the pools that they reserve; a tenant's later requests do not take what an earlier
// one waits for of the tenant's limit. A request that waits for a pool to be usable again reserves
// nothing.
//
// Threads: none of its own; the caller serialises.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/result.h"
#include "daemon/ledger/effect.h"
#include "daemon/ledger/ids.h"
#include "daemon/ledger/lease.h"

namespace gpulease::ledger {

// ----------------------------------------------------------------------------------------------------------
// set-up

struct PoolSpec {
  PoolKind kind = PoolKind::kDevice;
  std::string name;  // the GPU's UUID, or "numa0": for messages
  Bytes total = 0;
  Bytes headroom = 0;       // never leased; part of `free` all the same
  Bytes granularity = 1;    // chunk sizes are multiples of it
  Bytes largest_chunk = 0;  // a multiple of granularity
  std::optional<std::int32_t> numa_node;
  bool confirms_releases = true;  // false: nothing observes it; Destroyed() frees at once
};

struct TenantSpec {
  std::string name;
  Bytes device_limit = 0;  // over all device pools; 0: none
  Bytes host_limit = 0;
};

struct Limits {
  std::uint32_t sessions_per_user = 4096;
  std::uint32_t leases_per_user = 65536;
  std::uint32_t waits_per_user = 1024;     // queued groups
  Bytes label_bytes_per_user = 16 * kMiB;  // of names and labels, as TextBytes counts them
  std::uint64_t chunks = ~0ull;            // of the whole daemon: its descriptor budget
  // Of leases that may outlive whoever has a right to them: their bytes, and for how long.
  Bytes lasting_bytes_per_user = ~Bytes{0};
  Duration longest_linger = kForever;
  Duration session_grace = std::chrono::seconds(30);
  Duration release_bound = std::chrono::seconds(5);
  Duration driver_retry = std::chrono::seconds(2);
  Duration longest_wait = std::chrono::hours(24);
  // How long a request without patience waits all the same while released memory that could serve
  // it is on its way back. Zero: not at all.
  Duration release_wait{};
};

struct Options {
  std::vector<PoolSpec> pools;
  Limits limits;
  std::uint64_t id_seed = 1;   // ids are a function of it and of how many were drawn before
  bool notes_changes = false;  // for TakeChanges()
};

// ----------------------------------------------------------------------------------------------------------
// requests

struct UserId {
  UserId(std::uint32_t uid_in, Realm realm_in = {})  // NOLINT: a number is a user of the machine
      : realm(std::move(realm_in)), uid(uid_in) {}
  Realm realm;
  std::uint32_t uid = 0;
  friend auto operator<=>(const UserId&, const UserId&) = default;
};

struct UserSpec {  // what the kernel says of a peer
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::vector<std::uint32_t> groups;
  Realm realm;
  bool root = false;           // the root user of the machine, and not of a container
  bool administrator = false;  // may everything
  bool observer = false;       // sees everything: operators; administrators do in any case

  UserId id() const { return {uid, realm}; }
};

// Whom the limits of a user are counted for. Processes that cannot be placed share one account, so
// that nobody gains by being many.
inline UserId AccountOf(const UserId& user) {
  if (user.realm.empty() || user.realm[0] != kUnknownRealm) return user;
  return {user.uid, Realm(1, kUnknownRealm)};
}
inline UserId AccountOf(const UserSpec& user) { return AccountOf(user.id()); }

struct SessionSpec {
  UserSpec user;
  std::int32_t pid = 0;       // for people; identity is `process`
  std::uint64_t process = 0;  // the same number for connections of the same living process
  TenantSpec tenant;          // by name: the first session of a tenant makes it, the last specs win
  std::string program;
  std::string client_version;
};

// What may change while the ledger works: SetTerms.
struct Terms {
  struct Pool {
    Bytes headroom = 0;
    Bytes largest_chunk = 0;
  };
  Limits limits;
  std::vector<TenantSpec> tenants;  // new limits, by name
  std::vector<Pool> pools;          // as many as there are
  std::function<bool(const UserSpec&)> is_administrator;
  std::function<bool(const UserSpec&)> is_observer = [](const UserSpec&) { return false; };
};

struct AllocationSpec {
  PoolKind kind = PoolKind::kDevice;
  // Empty: any pool of the kind. Else those that will do: one of them is taken, the one with the
  // most free memory.
  std::vector<PoolIndex> pools;
  Bytes size = 0;       // as asked
  Bytes alignment = 0;  // 0: the pool's granularity; at most 1 GiB, a power of two
  PageSize page_size = PageSize::kAuto;
  std::string name;
  std::uint32_t mode = 0600;
  std::uint32_t gid = 0;
  std::map<std::string, std::string> labels;
  bool loading = false;  // see Lease
  Duration linger{};
  bool death_notice = false;  // host memory only: see Effect::Kind::kDeathNotice
  // Device memory: the addresses that an elastic lease may grow into, at least `size`; 0: it keeps
  // its size.
  Bytes reserve = 0;
  bool ipc = false;  // device memory: see Lease
};

struct AllocateCommand {
  SessionId session;
  std::vector<AllocationSpec> specs;
  Duration wait{};
  std::string request_id;
};

struct ResizeCommand {
  SessionId session;
  LeaseId lease;
  Bytes size = 0;  // that it is to have; rounded up
  // The caller has this many of its chunks, from the first, and no others: what goes is unmapped.
  std::uint32_t have_chunks = 0;
  Duration wait{};  // for a growth
};

struct ResumeCommand {
  SessionId session;
  LeaseId lease;
  std::uint32_t have_chunks = 0;  // as in ResizeCommand
  Duration wait{};
};

// The largest AllocationSpec::reserve: of addresses, not of memory.
inline constexpr Bytes kLargestReserve = 16384 * kGiB;

// ----------------------------------------------------------------------------------------------------------
// answers

struct Session {
  SessionId id;
  SessionSpec spec;
  bool connected = true;
  Time created{};
  Time grace_ends = kNever;  // while not connected
  std::uint32_t owned = 0;
  std::uint32_t open = 0;
  Bytes device_bytes = 0;  // charged
  Bytes host_bytes = 0;
};

struct PoolUse {
  Bytes total = 0;
  Bytes free = 0;
  Bytes leased = 0;     // kLeased, kRevoking, kReleased
  Bytes offered = 0;    // kMaking, kOffered
  Bytes releasing = 0;  // kDestroying, kReleasing, not quarantined
  Bytes unconfirmed = 0;
  Bytes quarantined = 0;
  Bytes outside = 0;
  Bytes overcommitted = 0;
  std::uint32_t leases = 0;
  std::uint32_t queued = 0;  // groups that wait for it
  bool usable = true;
};

struct TenantUse {
  TenantSpec spec;
  Bytes device_bytes = 0;
  Bytes host_bytes = 0;
  std::uint32_t leases = 0;
  std::uint32_t sessions = 0;
};

// What a user may still lease from a pool.
struct Budget {
  Bytes leasable = 0;  // the largest lease that would be granted now
  Bytes free = 0;
  Bytes mine = 0;  // charged to the user's leases there
  Bytes tenant_left = ~Bytes{0};
  std::uint32_t waiting = 0;  // groups that would come first
  std::string message;        // why nothing is granted
  std::vector<Blocker> holders;
};

struct Allocated {
  GroupId group;
  std::vector<LeaseId> leases;   // in the order of the specs
  State state = State::kQueued;  // of the group: kQueued, kMaking, or (a retry) what it is by now
  std::uint32_t queue_position = 0;
  bool retry = false;  // the request id was known: nothing was allocated, push again
};

struct Opened {
  LeaseId lease;
  bool already_open = false;  // this session had it open so: nothing changed
};

struct Resized {
  // What it grows by, when that has to wait or to be made. None: it has its size, or shrinks.
  GroupId group;
  LeaseId growth;
  State state = State::kLeased;  // of the growth: kQueued or kMaking
  bool retry = false;            // the growth was known: nothing new was asked for
};

struct Released {
  State state = State::kReleased;
  std::uint32_t holders = 0;
};

// ----------------------------------------------------------------------------------------------------------
// the ledger

class Ledger {
 public:
  explicit Ledger(Options options);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // ---- sessions

  // Opens a session.
  // Errors: kResourceExhausted/kSessionLimit   the user has too many.
  Result<SessionId> OpenSession(SessionSpec spec, Time now, Effects& effects);
  // A new connection of the same process takes the session over.
  // Errors: kFailedPrecondition/kSessionEnded   it is over, or another process's, or still
  // connected.
  Status ResumeSession(SessionId session, std::uint64_t process, Time now);
  // The connection closed while the process lives: grace starts; a session that holds nothing and
  // waits for nothing has nothing to come back for, and ends. No effect when there is no such
  // session.
  void LoseConnection(SessionId session, Time now, Effects& effects);
  // The process is dead, or (with `process_lives`) it said goodbye or its grace ended: all its
  // rights end. With `process_lives`, what it had open may still be mapped: such leases become
  // quarantined, not releasing.
  void EndSession(SessionId session, bool process_lives, Time now, Effects& effects);

  // ---- leases. Every command of a session answers kFailedPrecondition/kSessionEnded when there is
  // no such session; rpc has checked that it is the caller's.

  // Grants (state kMaking, effect kMake) or queues (kQueued), all specs or none. A request id that
  // the session has used is answered with what is left of that group, as long as the session owns
  // any of it.
  //
  // Errors, each of which leaves the ledger as it was:
  //   kInvalidArgument/kBadField
  //       specs 1 to 64, size 0, alignment, mode, a wait longer than `longest_wait`, a pool that
  //       does not exist or is of another kind, a name twice in the request, gid none of the user's
  //       (administrators: any), a death notice of device memory or of huge pages, an IPC handle of
  //       host memory, of an elastic lease or with an alignment beyond the granularity: mend the
  //       request.
  //   kInvalidArgument/kTooLarge
  //       more than the pools (total less headroom), the tenant's limit or the descriptors could
  //       ever give: no retry helps.
  //   kAlreadyExists/kNameTaken
  //       the user has a lease of this name that is not released.
  //   kResourceExhausted/kTenantLimit
  //       the tenant's limit is reached, or an earlier request of the tenant waits for it, and
  //       `wait` is zero: retry after the tenant releases something.
  //   kResourceExhausted/kSessionLimit, kDescriptorLimit
  //       too many leases, waits, bytes of labels or of lasting leases of the user, too many
  //       chunks: retry after a release; it is never queued for that.
  //   kUnavailable/kMemoryShort
  //       others hold the memory (or wait for it) and `wait` is zero; with blockers.
  //   kUnavailable/kGpuUnavailable
  //       every pool that it could use is not usable: retry when one is.
  //   kUnavailable/kStopping
  //       after Stop().
  Result<Allocated> Allocate(const AllocateCommand& command, Time now, Effects& effects);
  // The group that a lease of the session belongs to, for Await.
  // Errors: kNotFound/kNotOpenable.
  Result<Allocated> FindGroup(SessionId session, LeaseId lease) const;
  // The lease of the session whose last growth this one was, now a part of it; or null.
  const Lease* FindGrown(SessionId session, LeaseId growth) const;

  // The executor made every chunk of the group. A growth is a part of its parent from then on: its
  // lease and group are gone. False when nobody wants it any more (its owner died
  // or cancelled meanwhile): then kDestroy effects came out for it.
  bool Made(GroupId group, PageSize page_size, Time now, Effects& effects);
  // It could not, and has closed what it had made. `error.reason` kDriverMemoryShort: the group
  // goes back to the head of the queue and is retried after the next Observe() until its wait, at
  // least `driver_retry`, is over; otherwise it fails (kFailed with this error).
  void MakeFailed(GroupId group, const Error& error, Time now, Effects& effects);

  // The client has all descriptors of the lease: kOffered becomes kLeased. Unknown leases and
  // sessions are ignored.
  void Take(SessionId session, LeaseId lease, Time now, Effects& effects);
  // The client could not take them: its opening is undone; when it is the owner and the lease was
  // kOffered, the lease is. What the session has taken before (a push was repeated) it keeps.
  void Decline(SessionId session, LeaseId lease, Time now, Effects& effects);

  // Opens by id, or by the owner and name (see FindByName). `access` must be allowed by
  // owner, group and mode, of which writing needs both bits; administrators and the owning session
  // may all. A session that holds a released lease may open it again. Errors:
  //   kNotFound/kNotOpenable           the user itself has no lease of this name (by id:
  //                                    kPermissionDenied).
  //   kPermissionDenied/kNotOpenable   no such lease of another user, or not so: they look alike.
  //   kFailedPrecondition              it is queued, being made, or its rights have ended.
  //   kFailedPrecondition/kNotSealed   its owner is loading it: wait for kLoaded.
  //   kFailedPrecondition/kSealed      for writing, and it is sealed.
  //   kResourceExhausted/kSessionLimit the user has `leases_per_user` leases of others open.
  Result<Opened> Open(SessionId session, LeaseId lease, Access access, Time now, Effects& effects);
  Result<Opened> OpenByName(SessionId session, const UserId& owner, std::string_view name,
                            Access access, Time now, Effects& effects);

  // The session lets go of what it opened (the owner too, without releasing it; one that lasts is
  // an orphan then).
  // Errors: kNotFound/kNotOpenable   the session does not hold it.
  Status Close(SessionId session, LeaseId lease, Time now, Effects& effects);
  // The owner ends the lease (or the wait for its whole group): its name is free at once, its own
  // opening is closed, and it is destroyed when no holder is left. An administrator (`caller` may
  // be no session's) may release any; its holders then get kRevoked, the state is kRevoking while
  // the owner still has it open. With `force` all rights end at once and the bytes are quarantined.
  // An orphan is its user's, whichever session.
  // Errors: kNotFound/kNotOpenable   no such lease, or not the caller's; kPermissionDenied   force
  // by no administrator.
  Result<Released> Release(SessionId session, const UserSpec& caller, LeaseId lease, bool force,
                           Time now, Effects& effects);

  // The contents are complete: from here on it opens for reading alone. A second time with the same
  // tag changes nothing.
  // Errors: kNotFound/kNotOpenable           not the caller's
  //         kFailedPrecondition/kSealed      it is sealed with another tag
  //         kFailedPrecondition/kNotSealed   it is not made, or another session has it open for
  //                                          writing
  //         kResourceExhausted/kSessionLimit as of labels, for tag and directory
  Status Seal(SessionId session, LeaseId lease, std::string content_tag,
              std::shared_ptr<const std::string> directory, Time now, Effects& effects);
  // The session owns an orphan of its user from here on, and has it open: for writing unless it is
  // sealed. Errors: those of Open, and kFailedPrecondition/kUnspecified when it has an owner.
  Result<Opened> Claim(SessionId session, LeaseId lease, Time now, Effects& effects);

  // Gives an elastic lease another size; the caller is its owner and has it open. Its growth is
  // allocated as a lease of its own (kMake, or queued) and merged by Made(); another size that is
  // asked for meanwhile ends it. A size that it has changes nothing. It shrinks by whole chunks, at
  // once or when no session has more of it mapped than is left: then those that have are told
  // (kResized), nobody new gets what goes, and growing again undoes it.
  // Errors:
  //   kNotFound/kNotOpenable             not the caller's, or not open in the session
  //   kInvalidArgument/kBadField         0, more than it has reserved, more chunks than the session
  //                                      was given
  //   kFailedPrecondition/kUnsupported   it is not elastic
  //   kFailedPrecondition/kSealed        it is sealed
  //   kFailedPrecondition                it is not made, or its rights have ended
  //   and of growing, those of Allocate.
  Result<Resized> Resize(const ResizeCommand& command, Time now, Effects& effects);
  // The session, which has the lease open, has `have_chunks` of its chunks, from the first, and no
  // others. Gives how many it may have: it is given those that it lacks.
  // Errors: kNotFound/kNotOpenable       it is not open in the session
  //         kInvalidArgument/kBadField   more chunks than the session was given
  //         kFailedPrecondition/kSuspended   it is suspended, and its owner is gone
  Result<std::uint32_t> Refresh(SessionId session, LeaseId lease, std::uint32_t have_chunks,
                                Time now, Effects& effects);
  // The session lets go of the lease, which it has open, whenever that is suspended.
  // Errors: kNotFound/kNotOpenable   it is not open in the session
  Status TakePart(SessionId session, LeaseId lease);

  // Gives the lease's memory back; the caller is its owner and has `have_chunks` of its chunks. The
  // others that have it open are told; once nobody has any, the chunks are cut off (kCut). Nothing
  // changes for one that is suspended; what waits to resume it ends.
  // Errors:
  //   kNotFound, kInvalidArgument/kBadField   as Resize
  //   kFailedPrecondition/kNotPartaking       others have it open that do not take part: they are
  //                                           the error's blockers
  //   kFailedPrecondition/kUnsupported        it is host memory, or outlives its owner
  //   kFailedPrecondition                     it grows or shrinks, or its rights have ended
  Status Suspend(SessionId session, LeaseId lease, std::uint32_t have_chunks, Time now,
                 Effects& effects);
  // Brings its memory back, as a growth. With all of its chunks the owner has filled them, or did
  // not let go of them: it is resident, and the others are told.
  // Errors: those of Suspend but for kNotPartaking and kUnsupported, and those of Allocate.
  Result<Resized> Resume(const ResumeCommand& command, Time now, Effects& effects);

  // The executor closed the lease's chunks.
  void Destroyed(LeaseId lease, Time now, Effects& effects);

  // ---- what is observed outside

  // The driver's view of a pool, taken while no executor was making or destroying there: `used`
  // bytes by everybody (the broker's leases included), of a `total`. Frees what is releasing as far
  // as the driver shows it, oldest first: of what is used beyond living leases and the last known
  // outside use, the rest is still releasing; while nothing is releasing, all of it is outside.
  void Observe(PoolIndex pool, Bytes used, Time now, Effects& effects);
  // Host memory: the kernel says that nobody outside has the lease's memory any more (or that
  // somebody has).
  void ObserveLease(LeaseId lease, bool in_use, Time now, Effects& effects);
  // Grants from it stop or go on. Leases on it are left alone.
  void SetPoolUsable(PoolIndex pool, bool usable, std::string_view message, Time now,
                     Effects& effects);
  // Its memory is lost with it: not usable; every lease on it is over at once, charged to nobody,
  // its owner and holders told kDeviceLost; who could be served nowhere else fails.
  void LosePool(PoolIndex pool, std::string_view message, Time now, Effects& effects);
  // The memory of one lease is lost, as the process that had it has died: its owner and holders are
  // told kDeviceLost and have no right to it any more. What they may still map is quarantined until
  // the driver shows it as free. No effect on a lease that is not made, or closed already.
  void LoseLease(LeaseId lease, std::string_view message, Time now, Effects& effects);

  // ---- the rules

  // New terms from here on. What is granted stays, also where it is more than the new terms allow;
  // what waits and could never be granted any more fails; waits and graces that run keep their end.
  // Tenants that are not in the list, and the number of chunks, stay as they are.
  void SetTerms(const Terms& terms, Time now, Effects& effects);

  // Ends what time ends: waits, graces, the bound of releasing. Call it at NextDeadline().
  void Tick(Time now, Effects& effects);
  Time NextDeadline() const;
  // Fails every wait: the daemon is about to stop.
  void Stop(Time now, Effects& effects);

  // ---- what outlives the ledger

  // Leases that changed since the last call, each once; those that are gone, too. Empty unless
  // Options::notes_changes.
  std::vector<LeaseId> TakeChanges();
  // What another ledger needs to have the lease again: one that is made, and one of host memory
  // until it is gone (the descriptor tells when nobody has it any more). Nothing for others.
  std::optional<RestoredLease> Keepable(LeaseId lease) const;
  // The session of a former ledger, connected; limits hold for new ones alone.
  // Errors: kInvalidArgument when the id is none or is known.
  Status RestoreSession(SessionId session, SessionSpec spec, Time now);
  // The lease of a former ledger. Restore its sessions before: those that are missing here have
  // ended, and with the last right the lease does. A name that another lease has by now is lost.
  // Errors: kInvalidArgument, what does not add up: nothing has changed.
  Status RestoreLease(RestoredLease lease, Time now, Effects& effects);
  // Charges a lease of a former ledger as quarantined, without owner and holders; its chunks are
  // kept elsewhere. It goes when the driver shows its bytes as free; an administrator's forced
  // release makes it Keepable() no more, upon which they are to be closed.
  Status SetAside(RestoredLease lease, Time now, Effects& effects);

  // ---- reading. Pointers and references are valid until the next command.

  const Lease* FindLease(LeaseId lease) const;
  const Session* FindSession(SessionId session) const;
  const Lease* FindByName(const UserId& owner, std::string_view name) const;
  bool MaySee(const UserSpec& user,
              const Lease& lease) const;  // owns, holds (any session of the user) or may open
  // Leases with an id above `after`, in order of ids.
  std::vector<const Lease*> Leases(LeaseId after, std::size_t most) const;
  std::vector<const Session*> Sessions(SessionId after, std::size_t most) const;
  std::vector<LeaseId> GroupLeases(GroupId group) const;
  std::uint32_t QueuePosition(GroupId group) const;  // 1 is the next; 0 when it is not queued
  // What stands in its way. Of leases that `user` may not see, pid and id are 0.
  std::vector<Blocker> Blockers(GroupId group, const UserSpec& user) const;
  // `tenant` is whom the user's leases are charged to.
  Budget BudgetOf(PoolIndex pool, const UserSpec& user, const TenantSpec& tenant) const;
  Bytes LastingBytes(const UserSpec& user) const;
  const PoolSpec& Pool(PoolIndex pool) const;
  PoolUse Use(PoolIndex pool) const;
  std::size_t pool_count() const;
  std::vector<TenantUse> Tenants() const;
  std::size_t session_count() const;
  std::size_t lease_count() const;
  std::uint64_t chunk_count() const;
  // Pools with something releasing, unconfirmed or quarantined, or short of driver memory: those to
  // observe.
  std::vector<PoolIndex> PoolsToObserve() const;
  // Leases of host pools in kReleasing and kUnconfirmed: those to ask the kernel about.
  std::vector<LeaseId> LeasesToObserve(PoolIndex pool) const;

  // Empty, or what is wrong. Linear in everything; for tests and debug builds.
  std::string CheckInvariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpulease::ledger
