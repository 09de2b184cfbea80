// SPDX-License-Identifier: Apache-2.0
//
// Ledger::Impl: the ledger's books and the steps that commands are made of. Its members are defined
// where their verbs are: sessions.cc, allocate.cc, serve.cc, groups.cc, holdings.cc, release.cc,
// restore.cc, observe.cc, loss.cc, lasting.cc, elastic.cc, suspend.cc, terms.cc, reading.cc,
// invariants.cc.
//
// After each command: nothing that waits could be served now, and `reserved` and the tenants'
// `held` say what those that wait keep others from.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/ledger/accounts.h"
#include "daemon/ledger/id_sequence.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/placement.h"
#include "daemon/ledger/pool_account.h"
#include "daemon/ledger/wait_queue.h"
#include "daemon/ledger/wording.h"

namespace gpulease::ledger {

struct Ledger::Impl {
  explicit Impl(Options given);

  // ---- commands, as in ledger.h
  Result<SessionId> OpenSession(SessionSpec spec, Time now, Effects& effects);
  Status ResumeSession(SessionId id, std::uint64_t process);
  void LoseConnection(SessionId id, Time now, Effects& effects);
  void EndSession(SessionId id, bool process_lives, Time now, Effects& effects);
  Result<Allocated> Allocate(const AllocateCommand& command, Time now, Effects& effects);
  bool Made(GroupId id, PageSize page_size, Time now, Effects& effects);
  void MakeFailed(GroupId id, const Error& error, Time now, Effects& effects);
  void Take(SessionId session, LeaseId lease, Time now);
  void Decline(SessionId session, LeaseId lease, Time now, Effects& effects);
  Result<Opened> Open(SessionId session, LeaseId lease, Access access);
  Result<Opened> OpenByName(SessionId session, const UserId& owner, std::string_view name,
                            Access access);
  Status Close(SessionId session, LeaseId lease, Time now, Effects& effects);
  Result<Released> Release(SessionId session, const UserSpec& caller, LeaseId lease, bool force,
                           Time now, Effects& effects);
  void Destroyed(LeaseId lease, Time now, Effects& effects);
  void Observe(PoolIndex pool, Bytes used, Time now, Effects& effects);
  void ObserveLease(LeaseId lease, bool in_use, Time now, Effects& effects);
  void SetPoolUsable(PoolIndex pool, bool usable, std::string_view message, Time now,
                     Effects& effects);
  void LosePool(PoolIndex pool, std::string_view message, Time now, Effects& effects);
  void LoseLease(LeaseId lease, std::string_view message, Time now, Effects& effects);
  Status Seal(SessionId session, LeaseId lease, std::string content_tag,
              std::shared_ptr<const std::string> directory, Effects& effects);
  Result<Opened> Claim(SessionId session, LeaseId lease);
  Result<Resized> Resize(const ResizeCommand& command, Time now, Effects& effects);
  Result<std::uint32_t> Refresh(SessionId session, LeaseId lease, std::uint32_t have_chunks,
                                Time now, Effects& effects);
  Status TakePart(SessionId session, LeaseId lease);
  Status Suspend(SessionId session, LeaseId lease, std::uint32_t have_chunks, Time now,
                 Effects& effects);
  Result<Resized> Resume(const ResumeCommand& command, Time now, Effects& effects);
  void SetTerms(const Terms& terms, Time now, Effects& effects);
  void Tick(Time now, Effects& effects);
  void Stop(Time now, Effects& effects);
  std::vector<LeaseId> TakeChanges();
  std::optional<RestoredLease> Keepable(LeaseId lease) const;
  Status RestoreSession(SessionId id, SessionSpec spec, Time now);
  Status RestoreLease(RestoredLease restored, Time now, Effects& effects);

  // ---- sessions.cc
  SessionRecord& AddSession(SessionId id, SessionSpec spec, Time now);
  SessionRecord* FindSession(SessionId id);
  // An id that nothing has, restored things included.
  std::uint64_t FreshId();
  // Erases what no session and no lease needs any more.
  void Collect(UserAccount* user, const UserId& id, TenantAccount* tenant);

  // ---- allocate.cc
  // What Allocate found out about a request before it charges anything.
  struct Request {
    std::vector<Piece> pieces;
    PoolSet pools;
    KindBytes requested{};
    KindBytes bytes{};              // rounded up, at least
    std::uint64_t chunks = 0;       // at least
    LeaseRecord* parent = nullptr;  // of a growth
  };
  Result<Request> CheckFields(const AllocateCommand& command, const SessionRecord& session) const;
  Status CheckEver(const Request& request, const TenantAccount& tenant) const;
  Status CheckNow(const AllocateCommand& command, const Request& request,
                  const SessionRecord& session) const;
  // What it takes at least, whichever pools it gets.
  void Measure(Request& request) const;
  // Charges the request or queues it, or says what stands against it.
  Result<Allocated> Admit(const AllocateCommand& command, Request request, SessionRecord& session,
                          Time now, Effects& effects);
  Allocated Retry(Group& group);
  Group& AddGroup(const AllocateCommand& command, Request request, SessionRecord& session,
                  Time now);

  // ---- groups.cc
  void Enqueue(Group& group, bool first);
  void Dequeue(Group& group);
  void Grant(Group& group, const Placement& placement, Time now, Effects& effects);
  void TellFailed(const Group& group, Error error, Effects& effects) const;
  // A queued group is over.
  void FailQueued(Group& group, Error error, Effects& effects);
  // Nobody wants the chunks that the executor is making.
  void CancelMaking(Group& group, Error error, Effects& effects);
  void EraseGroup(Group& group, Effects& effects);
  // Takes it out of its group, which goes with its last lease.
  void LeaveGroup(LeaseRecord& record);
  Allocated Answer(const Group& group) const;

  // ---- serve.cc
  // Grants what can be granted, in order.
  void Serve(Time now, Effects& effects);
  bool ServeOne(Time now, Effects& effects);
  void Expire(Group& group, Time now, Effects& effects);
  void Emit(EventType type, const LeaseRecord& record, std::vector<SessionId> sessions,
            Effects& effects) const;

  // ---- holdings.cc
  LeaseRecord* FindLease(LeaseId id);
  Holding* FindHolding(LeaseRecord& record, SessionId session);
  void AddHolding(LeaseRecord& record, SessionRecord& session, Access access);
  // What the session has of it stays mapped in a living process, though its right ends.
  void Expose(LeaseRecord& record, SessionId session);
  // False when there was none.
  bool RemoveHolding(LeaseRecord& record, SessionId session);
  // A holder's rights ended without his doing.
  void NoticeDeath(const LeaseRecord& record, Effects& effects) const;
  std::vector<SessionId> HolderSessions(const LeaseRecord& record) const;
  // `asked` is how the caller called it: what it may not see must not show its id.
  Result<Opened> OpenRecord(SessionRecord& session, LeaseRecord& record, const std::string& asked,
                            Access access);

  // ---- release.cc
  void SetState(LeaseRecord& record, State state, Time now);
  // Its name is free, and who waits for its contents is told that they will not come.
  void FreeName(LeaseRecord& record, Effects& effects);
  // The owner's right ends; its opening has ended before.
  void DropOwner(LeaseRecord& record, Effects& effects);
  void LeaveOwner(LeaseRecord& record, Effects& effects);
  // The owner lets go of a made lease: released while others hold it, destroyed otherwise.
  void LetGo(LeaseRecord& record, EventType type, Time now, Effects& effects);
  // Cuts off what nobody has mapped any more; destroys a lease that nobody has a right to.
  void Settle(LeaseRecord& record, Time now, Effects& effects);
  void StartDestroy(LeaseRecord& record, Time now, Effects& effects);
  void Revoke(LeaseRecord& record, bool force, Time now, Effects& effects);
  // Its chunks are closed: it is releasing until the driver or the kernel shows the bytes.
  void AwaitBytes(LeaseRecord& record, Time now, Effects& effects);
  void EraseLease(LeaseRecord& record, Effects& effects);
  void Note(LeaseId lease) {
    if (options.notes_changes) changes.push_back(lease);
  }

  // ---- restore.cc
  Status CheckRestored(const RestoredLease& restored) const;
  Group& RestoreGroup(const RestoredLease& restored, SessionRecord* owner);

  // ---- terms.cc
  // Fails what waits and could never be granted.
  void FailHopeless(Effects& effects);

  // ---- observe.cc
  // `bytes` of a closed lease are free; erases it with the last of them.
  void FreeBytes(LeaseRecord& record, Bytes bytes, Effects& effects);

  // ---- loss.cc
  // It ends with its pool.
  void LoseWithPool(LeaseRecord& record, Effects& effects);
  // Tells owner and holders that it is over.
  void TellLost(const LeaseRecord& record, Error error, std::string_view message,
                Effects& effects) const;

  // ---- lasting.cc
  // Its owner is gone and it lasts.
  void Orphan(LeaseRecord& record, Time now, Effects& effects);
  // An orphan's time runs while nobody has it open.
  void SetEnd(LeaseRecord& record, Time now);
  void StopEnd(LeaseRecord& record);
  // It lasts no longer than its holders.
  void StopLasting(LeaseRecord& record);
  void EndOrphan(LeaseRecord& record, Time now, Effects& effects);

  // ---- elastic.cc
  // `more` bytes for `record`, asked for as a lease of its own.
  Result<Resized> Grow(LeaseRecord& record, const ResizeCommand& command, Bytes more,
                       SessionRecord& session, Time now, Effects& effects);
  // The growth of `record`, if there is one, is over: nobody wants it any more.
  void EndGrowth(LeaseRecord& record, const std::string& why, Effects& effects);
  // A growth that was made becomes a part of its parent.
  void Merge(LeaseRecord& growth, Time now, Effects& effects);
  // Cuts off what is to go, if nobody has it mapped any more.
  void SettleShrink(LeaseRecord& record, Time now, Effects& effects);
  void Cut(LeaseRecord& record, std::uint32_t left, Time now, Effects& effects);

  // ---- suspend.cc
  // What a command of its owner, who has it open, is about.
  struct Own {
    SessionRecord* session = nullptr;
    LeaseRecord* record = nullptr;
    Holding* holding = nullptr;
  };
  Result<Own> FindOwn(SessionId session, LeaseId lease, std::uint32_t have_chunks);
  // Its contents are in its chunks: the others that have it open are told.
  void MakeResident(LeaseRecord& record, Effects& effects);
  // Of what is to be suspended and has its contents in its chunks.
  void CallOffSuspend(LeaseRecord& record, Effects& effects);

  // ---- reading.cc
  LeaseRecord* FindByName(const UserId& owner, std::string_view name) const;
  bool MaySee(const UserSpec& user, const Lease& lease) const;
  std::vector<Blocker> BlockersOf(const PoolSet& pools, const TenantAccount* tenant,
                                  const UserSpec& user) const;
  Shortage ShortageOf(const std::vector<Piece>& pieces, const UserSpec& user) const;
  std::uint64_t ChunkCount() const;
  std::string CheckInvariants() const;
  // Debug builds: CheckInvariants() after each command while there is little to check, then now
  // and then; dies of what is wrong.
  void Verify();

  Options options;
  std::deque<PoolAccount> pools;
  IdSequence ids;
  std::map<SessionId, SessionRecord> sessions;
  std::unordered_map<GroupId, Group> groups;
  std::map<UserId, UserAccount> users;
  std::map<std::string, TenantAccount, std::less<>> tenants;
  // After what it is charged to, so that charges go before their accounts.
  std::map<LeaseId, LeaseRecord> leases;
  WaitQueue queue;
  PoolSet reserved;
  std::vector<TenantAccount*> held;  // tenants with a kind held
  std::set<std::pair<Time, GroupId>> waits;
  std::set<std::pair<Time, SessionId>> graces;
  std::set<std::pair<Time, LeaseId>> bounds;
  std::set<std::pair<Time, LeaseId>> orphans;  // whose time runs
  std::uint64_t generations = 0;
  std::uint64_t closed_turns = 0;
  std::vector<LeaseId> changes;
  std::uint64_t unchecked = 0;  // commands since Verify() looked at everything
  bool stopping = false;
};

}  // namespace gpulease::ledger
