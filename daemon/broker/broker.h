// SPDX-License-Identifier: Apache-2.0
//
// Broker: the ledger and the hands that carry out what it decides. It owns no rule: the ledger
// decides, the broker locks it, makes and closes chunks, hands them over, wakes those who wait, and
// reports back.
//
// Threads: any. One lock guards the ledger and is never held over a driver call, a send or a
// callback. A lane's gate may be held when the lock is taken, never the other way round.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "daemon/broker/event_hub.h"
#include "daemon/broker/view.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory/device_memory.h"
#include "daemon/memory/hang_up_watch.h"
#include "daemon/memory/ipc_memory.h"
#include "daemon/memory/lane.h"
#include "daemon/memory/lease_memory.h"
#include "daemon/peers/reception.h"
#include "daemon/state/keeper_link.h"
#include "daemon/state/record.h"
#include "driver/nvml_driver.h"

namespace gpulease::broker {

// A GPU or a NUMA node that leases come from. The index in Options::pools is the ledger's.
struct Pool {
  ledger::PoolSpec spec;
  driver::GpuDescription gpu;  // device pools
  std::int32_t numa_node = 0;  // host pools
};

struct Options {
  std::vector<Pool> pools;
  std::vector<driver::GpuDescription> unsupported_gpus;  // shown, never leased from
  ledger::Limits limits;
  std::uint64_t id_seed = 0;
  unsigned populate_threads = 1;
  std::shared_ptr<const driver::CudaDriver> cuda;  // null: no GPUs
  std::shared_ptr<const driver::NvmlDriver> nvml;  // null: releases count when they are closed
  std::set<std::uint32_t> fatal_xids;              // after which a GPU is lost
  memory::IpcPlace ipc;                            // of the processes that have memory with handles
  // Who pays for a session of this peer.
  std::function<ledger::TenantSpec(const peers::Peer&)> tenant_of;
  std::function<bool(const ledger::UserSpec&)> is_administrator;
  std::function<bool(const ledger::UserSpec&)> is_observer;  // sees everything
  // The next image of the daemon is to have other GPUs than this one, for `why`: see retired().
  // From any thread.
  std::function<void(const std::string& why)> on_retired;
  // Where leases outlive this process; null: nowhere.
  std::shared_ptr<state::KeeperLink> keeper;
  std::array<std::uint8_t, 16> instance{};  // names this life of the leases
  // One line for the log: something an administrator should know.
  std::function<void(const std::string&)> report;
};

// What became of what the keeper held.
struct Restored {
  std::size_t sessions = 0;
  std::size_t leases = 0;
  std::size_t ended = 0;  // sessions whose process has died meanwhile
  std::size_t aside = 0;  // leases that are quarantined
  // Entries that stay with the keeper as they are: why, one line each.
  std::vector<std::string> broken;
};

// What a lease that the caller may not see is for him, as one that does not exist.
Error NotVisible();
// The daemon is about to stop.
Error Stopping();

class Broker : public peers::Registrar {
 public:
  explicit Broker(Options options);
  ~Broker() override;

  // The Reception that pushes go to; set once, before anybody can call.
  void Attach(peers::Reception* reception) { reception_ = reception; }
  // Takes up what a former life of the daemon left, with `aside` all leases as quarantined and no
  // session. Then, or without anything to restore, Start(): from here on the driver is looked at.
  // Both on the loop's thread, after Attach.
  Restored Restore(std::vector<state::Kept> kept, bool aside);
  void Start();
  // Tells the keeper which life of the leases this is.
  void KeepNode();
  // Tells a keeper that was connected just now everything. On the loop's thread.
  void Refill();
  // Called from any thread, and under a lock, with a deadline of the ledger that is earlier than
  // the one told before, or the first since Tick().
  void OnDeadline(std::function<void(Time)> changed) { deadline_changed_ = std::move(changed); }
  void Tick();
  // Looks for driver calls that have not returned, and for drained GPUs that nothing here has open
  // any more; from the loop, now and then.
  void CheckLanes();
  // Admits nobody, for this reason; admits everybody again without one.
  void KeepOut(std::optional<Error> reason);
  // GPUs that are expected and not there: shown with the others.
  void ShowMissing(std::vector<AbsentGpu> gpus);
  // New terms: see Ledger::SetTerms.
  void SetTerms(const ledger::Terms& terms);
  // Fails every wait and tells watchers. Nothing is granted afterwards.
  void Stop();
  // Ends the lanes; false when a driver call did not return.
  bool StopLanes(Duration bound);

  // ---- for rpc. `peer` is who calls; `session` must be his process's.
  // Errors: those of the API (proto/gpulease/v1/lease.proto).
  Result<Grant> Allocate(const peers::Peer& peer, std::uint64_t push_tag,
                         const ledger::AllocateCommand& command);
  // Calls `done` once, at once or later, from any thread. The ticket takes the wait back:
  // CancelAwait; 0: none is needed.
  using GrantCallback = std::function<void(Result<Grant>)>;
  std::uint64_t Await(const peers::Peer& peer, ledger::SessionId session, std::uint64_t push_tag,
                      ledger::LeaseId lease, GrantCallback done);
  // `done` is called with kCancelled unless it was called already.
  void CancelAwait(std::uint64_t ticket);
  Result<LeaseView> Open(const peers::Peer& peer, ledger::SessionId session, std::uint64_t push_tag,
                         ledger::LeaseId lease, ledger::Access access);
  Result<LeaseView> OpenByName(const peers::Peer& peer, ledger::SessionId session,
                               std::uint64_t push_tag, const ledger::UserId& owner,
                               std::string_view name, ledger::Access access);
  Status Close(const peers::Peer& peer, ledger::SessionId session, ledger::LeaseId lease);
  Result<ledger::Released> Release(const peers::Peer& peer, ledger::SessionId session,
                                   ledger::LeaseId lease, bool force);
  Result<LeaseView> Seal(const peers::Peer& peer, ledger::SessionId session, ledger::LeaseId lease,
                         std::string content_tag, std::shared_ptr<const std::string> directory);
  // As Await and CancelAwait, for a lease that is being loaded to be sealed.
  using SealedCallback = std::function<void(Result<LeaseView>)>;
  std::uint64_t AwaitSealed(const peers::Peer& peer, ledger::LeaseId lease, SealedCallback done);
  void CancelAwaitSealed(std::uint64_t ticket);
  Result<LeaseView> Claim(const peers::Peer& peer, ledger::SessionId session,
                          std::uint64_t push_tag, ledger::LeaseId lease);
  Result<ResizeView> Resize(const peers::Peer& peer, std::uint64_t push_tag,
                            const ledger::ResizeCommand& command);
  Result<ResizeView> Refresh(const peers::Peer& peer, ledger::SessionId session,
                             std::uint64_t push_tag, ledger::LeaseId lease,
                             std::uint32_t have_chunks, bool takes_part);
  Result<ResizeView> Suspend(const peers::Peer& peer, ledger::SessionId session,
                             ledger::LeaseId lease, std::uint32_t have_chunks);
  Result<ResizeView> Resume(const peers::Peer& peer, std::uint64_t push_tag,
                            const ledger::ResumeCommand& command);
  // Of those that the peer may see.
  Result<ledger::LeaseId> FindByName(const peers::Peer& peer, const ledger::UserId& owner,
                                     std::string_view name) const;
  Result<LeaseView> GetLease(const peers::Peer& peer, ledger::LeaseId lease) const;
  // Those that the peer may see and `wanted` says yes to, with an id above `after`.
  std::vector<LeaseView> ListLeases(const peers::Peer& peer, ledger::LeaseId after,
                                    std::size_t most,
                                    const std::function<bool(const LeaseView&)>& wanted) const;
  std::vector<ledger::Session> ListSessions(const peers::Peer& peer, ledger::SessionId after,
                                            std::size_t most) const;
  NodeView Node();
  BudgetView Budget(const peers::Peer& peer) const;
  // Errors: those of the API (proto/gpulease/v1/node.proto). Gives how many leases are left.
  enum class DrainMode { kWait, kAsk, kEnd };
  Result<std::size_t> Drain(const peers::Peer& peer, std::string_view uuid, DrainMode mode);
  Status Undrain(const peers::Peer& peer, std::string_view uuid);
  // The GPUs that are out of service, drained or lost, and without a lease. Once Stop() has been
  // called and the last call has ended, they are those of the next image.
  std::vector<state::RetiredGpu> retired() const;
  // Those that an earlier life took out of service; before Start().
  void KeepRetired(std::vector<state::RetiredGpu> gpus);
  // The GPU's memory is lost, for `why`: every lease on it ends, and the daemon lets go of it. At
  // once, from any thread; the second time for a GPU nothing happens.
  void Lose(std::string_view uuid, const std::string& why);
  // Whether no driver call is in progress.
  bool idle() const;
  Status CheckSession(const peers::Peer& peer, ledger::SessionId session) const;
  bool IsObserver(const peers::Peer& peer) const { return options_.is_observer(peer.user); }
  bool admits() const;
  std::size_t lease_count() const;
  EventHub& events() { return events_; }
  // The pool of a GPU (kNoPool: none), and all pools of host memory.
  ledger::PoolIndex FindGpu(std::string_view uuid) const;
  const std::vector<Pool>& pools() const { return options_.pools; }

  // ---- peers::Registrar
  Result<Admitted> Admit(const peers::Peer& peer, const handle::Hello& hello,
                         const Lifeline& lifeline) override;
  void Took(ledger::SessionId session, ledger::LeaseId lease, bool ok) override;
  void LostConnection(ledger::SessionId session) override;
  void Died(ledger::SessionId session) override;

 private:
  struct Waiter {
    std::uint64_t ticket = 0;
    ledger::SessionId session;
    std::uint64_t push_tag = 0;
    GrantCallback done;
  };
  // Who awaits that a lease is sealed.
  struct Reader {
    std::uint64_t ticket = 0;
    ledger::UserId user;
    SealedCallback done;
  };
  // What is known of a pool beside the ledger.
  struct PoolWatch {
    std::unique_ptr<memory::Lane> lane;
    std::unique_ptr<memory::DeviceMemory> device;  // device pools
    std::unique_ptr<memory::IpcMemory> ipc;        // device pools
    GpuState state = GpuState::kReady;
    std::string message;
    bool draining = false;  // kDraining, kDrained or kLost, whatever the driver shows
    bool lost = false;
    bool returning = false;         // lost, and served again by the next image
    Time releasing_since = kNever;  // something has been awaited since
    Time observed{};
    int utilization_percent = -1;
    std::vector<Suspect> suspects;
    Time suspects_at{};
  };
  // Why a lease is over, for a session that may still come for it.
  struct Failure {
    ledger::LeaseId lease;
    ledger::SessionId session;
    Error error;
  };
  struct MakeItem {
    ledger::LeaseId lease;
    ledger::SessionId owner;
    ledger::PoolIndex pool = ledger::kNoPool;
    std::vector<Bytes> chunks;
    ledger::PageSize page_size = ledger::PageSize::kSmall;
    bool ipc = false;
  };

  // ---- effects (broker.cc)
  // After every command, under the lock under which it was given: chunks move as the ledger moved
  // them, and why something is over is known to whoever looks next.
  void Settle(ledger::Effects& effects) GPULEASE_REQUIRES(mutex_);
  // Carries out what a command decided. `inline_group` is left to the caller.
  void Carry(ledger::Effects effects, ledger::GroupId inline_group = {}) GPULEASE_EXCLUDES(mutex_);
  void TellDeadline() GPULEASE_EXCLUDES(mutex_);
  void NoticeDeath(ledger::LeaseId lease);
  std::optional<Waiter> TakeWaiter(ledger::GroupId group) GPULEASE_EXCLUDES(mutex_);

  // ---- handing over (handing_over.cc)
  Result<Grant> HandOver(ledger::SessionId session, std::uint64_t push_tag, ledger::GroupId group)
      GPULEASE_EXCLUDES(mutex_);
  // The lease as a session is handed it: with its chunks, but for those that are about to go.
  struct Parts {
    ledger::Lease lease;
    std::shared_ptr<const memory::LeaseMemory> memory;
  };
  Parts PartsOf(const ledger::Lease& lease, ledger::SessionId session) const
      GPULEASE_REQUIRES(mutex_);
  // Its chunks from `first` on.
  Status Push(ledger::SessionId session, std::uint64_t push_tag, const Parts& parts,
              ledger::Access access, std::uint32_t first = 0) GPULEASE_EXCLUDES(mutex_);
  Result<LeaseView> FinishOpen(ledger::SessionId session, std::uint64_t push_tag,
                               Result<ledger::Opened> opened, ledger::Effects effects,
                               ledger::Access access) GPULEASE_EXCLUDES(mutex_);
  Status CloseHolding(ledger::SessionId session, ledger::LeaseId lease) GPULEASE_EXCLUDES(mutex_);
  LeaseView ViewOf(const ledger::Lease& lease) const GPULEASE_REQUIRES(mutex_);
  LeaseView FullViewOf(const ledger::Lease& lease, const ledger::UserSpec& viewer) const
      GPULEASE_REQUIRES(mutex_);
  // The peer with its roles of now.
  ledger::UserSpec UserOf(const peers::Peer& peer) const;

  // ---- leases that change their size (elastic.cc)
  // A growth that became a part of `lease`, from its chunk `first` on.
  Result<Grant> HandOverGrown(ledger::SessionId session, std::uint64_t push_tag,
                              ledger::LeaseId lease, std::uint32_t first) GPULEASE_EXCLUDES(mutex_);
  // Resize and Resume, with what the ledger said.
  Result<ResizeView> Grow(std::uint64_t push_tag, const ledger::ResumeCommand& command,
                          const std::function<Result<ledger::Resized>(ledger::Effects&)>& ask)
      GPULEASE_EXCLUDES(mutex_);
  // The lease as it is, and to the session, which has it open, the chunks that it lacks.
  Result<ResizeView> FinishResize(ledger::SessionId session, std::uint64_t push_tag,
                                  ledger::LeaseId lease, std::uint32_t have_chunks)
      GPULEASE_EXCLUDES(mutex_);

  // ---- contents (contents.cc)
  // The lease is sealed, or over.
  void TellReaders(ledger::LeaseId lease) GPULEASE_EXCLUDES(mutex_);
  void StopReaders() GPULEASE_EXCLUDES(mutex_);

  // ---- the keeper (keeping.cc)
  // Tells it what the effects' command changed.
  void Keep(const ledger::Effects& effects) GPULEASE_EXCLUDES(mutex_);
  void KeepLease(ledger::LeaseId lease) GPULEASE_REQUIRES(mutex_);
  void KeepSession(const ledger::Session& session, const Lifeline& lifeline);
  ledger::SessionSpec SpecOf(const peers::Peer& peer) const;
  void RestoreSession(state::Kept& kept, Restored& restored,
                      std::unordered_set<ledger::SessionId>& unclear);
  using Directories = std::map<ledger::LeaseId, std::shared_ptr<const std::string>>;
  void RestoreDirectory(state::Kept& kept, Restored& restored, Directories& directories);
  void RestoreLease(state::Kept& kept, bool aside,
                    const std::unordered_set<ledger::SessionId>& unclear,
                    const Directories& directories, Restored& restored, ledger::Effects& effects);

  // ---- making and closing chunks (making.cc)
  void MakeOnLane(ledger::GroupId group) GPULEASE_EXCLUDES(mutex_);
  // On this thread, if its lanes are free soon; else on theirs. Errors: what ended the group.
  Status MakeHere(ledger::GroupId group) GPULEASE_EXCLUDES(mutex_);
  // Empty when a lane was not free within `most`; else how it went, as MakeHere.
  std::optional<Status> Make(ledger::GroupId group, const std::vector<MakeItem>& items,
                             std::optional<Duration> most) GPULEASE_EXCLUDES(mutex_);
  void KeepFailure(const std::vector<ledger::LeaseId>& leases,
                   const std::vector<ledger::SessionId>& sessions, const Error& error)
      GPULEASE_REQUIRES(mutex_);
  std::optional<Error> FailureOf(ledger::SessionId session, ledger::LeaseId lease) const
      GPULEASE_REQUIRES(mutex_);
  // The failure that is known of the lease, or `error`, which the ledger said.
  Error WhyOver(ledger::SessionId session, ledger::LeaseId lease, Error error) const
      GPULEASE_REQUIRES(mutex_);
  std::vector<MakeItem> ItemsOf(ledger::GroupId group) const GPULEASE_EXCLUDES(mutex_);
  Result<std::shared_ptr<const memory::LeaseMemory>> MakeChunks(ledger::GroupId group,
                                                                const MakeItem& item,
                                                                ledger::PageSize& page_size);
  // The processes that are to make blocks with handles are there, before a gate is held for them.
  Status PrepareIpc(const std::vector<MakeItem>& items) const;
  // Sees to it that the lease ends when the process does that has its memory. Under the lock, so
  // that its end is seen after the ledger has it.
  void WatchIpc(ledger::LeaseId lease) GPULEASE_REQUIRES(mutex_);
  // That process is gone.
  void LoseLease(ledger::LeaseId lease) GPULEASE_EXCLUDES(mutex_);
  bool StillWanted(ledger::GroupId group) const GPULEASE_EXCLUDES(mutex_);
  void Destroy(ledger::LeaseId lease, ledger::PoolIndex pool) GPULEASE_EXCLUDES(mutex_);

  // ---- GPUs out of service (draining.cc)
  void StartDraining(ledger::PoolIndex pool, ledger::Effects& effects) GPULEASE_REQUIRES(mutex_);
  void StartLosing(ledger::PoolIndex pool, const std::string& why, ledger::Effects& effects)
      GPULEASE_REQUIRES(mutex_);
  // Tells of GPUs whose last lease is gone.
  void CheckDrained() GPULEASE_EXCLUDES(mutex_);

  // ---- the driver's and the kernel's view (observing.cc)
  Time ObserveDevice(ledger::PoolIndex pool) GPULEASE_EXCLUDES(mutex_);
  Time ListenForXids() GPULEASE_EXCLUDES(mutex_);
  Time ObserveHost(ledger::PoolIndex pool) GPULEASE_EXCLUDES(mutex_);
  Time NextObservation(ledger::PoolIndex pool, Time now) GPULEASE_REQUIRES(mutex_);
  void SetState(ledger::PoolIndex pool, GpuState state, const std::string& message)
      GPULEASE_EXCLUDES(mutex_);

  const Options options_;
  peers::Reception* reception_ = nullptr;
  std::function<void(Time)> deadline_changed_;
  memory::MemoryStore store_;
  EventHub events_;

  mutable Mutex mutex_;
  ledger::Ledger ledger_ GPULEASE_GUARDED_BY(mutex_);
  std::map<ledger::GroupId, Waiter> waiters_ GPULEASE_GUARDED_BY(mutex_);
  std::multimap<ledger::LeaseId, Reader> readers_ GPULEASE_GUARDED_BY(mutex_);
  static constexpr std::size_t kMostFailures = 1024;  // of about 500 bytes; the oldest go first
  std::deque<Failure> failures_ GPULEASE_GUARDED_BY(mutex_);
  // The keeper has these, with the chunks of that revision.
  std::unordered_map<ledger::LeaseId, std::uint32_t> kept_ GPULEASE_GUARDED_BY(mutex_);
  std::unordered_set<ledger::LeaseId> kept_directories_ GPULEASE_GUARDED_BY(mutex_);
  std::size_t set_aside_ GPULEASE_GUARDED_BY(mutex_) = 0;  // of its entries, that were not taken up
  std::uint64_t next_ticket_ GPULEASE_GUARDED_BY(mutex_) = 1;
  Time told_deadline_ GPULEASE_GUARDED_BY(mutex_) = kNever;
  Duration release_bound_ GPULEASE_GUARDED_BY(mutex_);
  bool stopping_ GPULEASE_GUARDED_BY(mutex_) = false;
  std::optional<Error> keep_out_ GPULEASE_GUARDED_BY(mutex_);
  std::vector<AbsentGpu> missing_ GPULEASE_GUARDED_BY(mutex_);
  std::vector<state::RetiredGpu> retired_ GPULEASE_GUARDED_BY(mutex_);
  std::atomic<bool> any_draining_ = false;
  std::vector<PoolWatch> watches_;  // lane and device never change; the rest is guarded by mutex_
  // Makes what has no lane of its own: host memory, and groups over several GPUs.
  std::unique_ptr<memory::Lane> makers_;
  // Always in a call of the driver that waits.
  std::optional<driver::XidEvents> xid_events_;
  std::unique_ptr<memory::Lane> xid_listener_;
  // Of the chunks of leases with `ipc`; its callback uses the rest.
  std::unique_ptr<memory::HangUpWatch> hang_ups_;
};

}  // namespace gpulease::broker
