// SPDX-License-Identifier: Apache-2.0
//
// LeaseRecord: what a Lease object stands for: one allocation or opening of a lease by a session,
// with the descriptors of its chunks. MappedRange: one mapping of it.
//
// A session may have the same lease open several times. What it has in common is the LeaseHold: the
// daemon is told when the last record goes, and a range is mapped once for each access.
//
// Locks: LeaseHold::resizing is taken while a device lease gets other chunks, over what is asked
// of the daemon for it; then LeaseHold::mutex, which is taken while mapping, and under which
// nothing is asked of the daemon.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "client/sdk/src/memory/device_range.h"
#include "client/sdk/src/memory/host_range.h"
#include "client/sdk/src/memory/ipc_range.h"
#include "client/sdk/src/session/session.h"
#include "gpulease/v1/lease.wire.h"

namespace gpulease {

class HandOver;
class Publication;
class SuspendRoom;

inline namespace abi_v1 {

// A mapped range. Unmaps when destroyed, except in a forked child.
class MappedRange {
 public:
  ~MappedRange();

  std::shared_ptr<LeaseRecord> record;
  Access access = Access::kReadWrite;
  int ordinal = -1;
  std::optional<DeviceRange> device;
  std::optional<HostRange> host;
  std::optional<IpcRange> ipc;
};

}  // namespace abi_v1

// What the records of one lease in one session share.
struct LeaseHold {
  std::uint64_t lease_id = 0;
  std::uint64_t epoch = 0;
  // under the LeaseTable's mutex
  int records = 0;
  bool ending = false;  // the daemon is being told
  // of its own
  std::atomic<bool> owned{false};
  std::atomic<bool> ended{false};  // released or closed by a call
  std::atomic<int> ranges{0};
  std::mutex mutex;
  std::weak_ptr<MappedRange> mapped[2];  // by Access; under mutex
  // Of device memory, whose chunks all its records and ranges share.
  std::atomic<bool> device{false};
  std::atomic<Bytes> size{0};
  std::atomic<Bytes> requested{0};
  std::atomic<bool> away{false};  // it has no chunks here: it is suspended
  std::mutex resizing;
  // under resizing
  bool takes_part = false;
  bool discarded = false;  // nobody has what was in it
  bool after_due = false;  // hooks.before was called, hooks.after was not
  SuspendHooks hooks;
  std::shared_ptr<SuspendRoom> room;
  // under mutex
  std::vector<LocalFd> descriptors;
  std::vector<Bytes> chunks;  // their sizes
  std::vector<MappedRange*> live;
};

inline namespace abi_v1 {

class LeaseRecord {
 public:
  // Takes part in the hold of its lease. Nothing when that is just being ended: what was opened
  // may be closed by now, open it again.
  static std::shared_ptr<LeaseRecord> Make(std::shared_ptr<Session> session, std::uint64_t epoch,
                                           wire::Lease lease, HandedLease handed, bool owned,
                                           Access access);
  ~LeaseRecord();

  // Errors: those of Lease::Map.
  Result<std::shared_ptr<MappedRange>> Map(const std::shared_ptr<LeaseRecord>& self,
                                           const MapOptions& options);
  // Host memory, as what only processors look at: CUDA is not told of it.
  Result<std::shared_ptr<MappedRange>> MapPlain(const std::shared_ptr<LeaseRecord>& self);
  Result<std::vector<int>> Duplicate() const;
  // Its lease() is the sealed one afterwards, its access() for reading.
  Status Seal(std::string_view content_tag, std::span<const DirectoryEntry> directory);
  Result<std::vector<DirectoryEntry>> Directory() const;
  // Those that hold a shrink up; see Lease::Resize.
  Result<std::vector<wire::Holder>> Resize(Bytes size, std::chrono::milliseconds wait);
  // Whether anything changed; see Lease::Refresh.
  Result<bool> Refresh();
  Bytes size_bytes() const { return hold_->device ? hold_->size.load() : lease_.size_bytes; }
  Bytes requested_bytes() const {
    return hold_->device ? hold_->requested.load() : lease_.requested_bytes;
  }
  std::vector<Bytes> chunk_sizes() const;
  // See Lease::PrepareSuspend and what follows there.
  Status PrepareSuspend(std::chrono::milliseconds wait);
  Status DropSuspendRoom();
  Result<std::vector<wire::Holder>> Suspend(const SuspendOptions& options);
  Status Resume(const ResumeOptions& options);
  Status TakePart(SuspendHooks hooks);
  bool suspended() const { return hold_->away; }
  Status Release();
  Status Close();
  // The owner's release, also while it is mapped here: the name is free, the memory is not yet.
  Status Disclaim();
  // Errors: kFailedPrecondition when it was released or closed, its session is gone, or after fork.
  Status Usable() const;

  const wire::Lease& lease() const { return lease_; }
  bool owned() const { return hold_->owned; }
  Access access() const { return access_; }
  const std::shared_ptr<Session>& session() const { return session_; }
  LeaseHold& hold() { return *hold_; }
  // What travels with it; null where it was allocated without.
  Publication* order() const { return order_.get(); }
  void Attach(std::unique_ptr<Publication> order);

 private:
  LeaseRecord() = default;
  std::string Subject() const;
  Status End(bool release);
  CallTerms Terms(Deadline deadline) const;
  // ---- elastic_record.cc, under LeaseHold::resizing
  struct Answer;
  Result<Answer> AskFor(Bytes size, std::chrono::milliseconds wait);
  Status AwaitGrowth(std::uint64_t growth_id, Deadline deadline);
  Result<bool> CatchUp();
  std::size_t HasChunks() const;
  // Takes what was pushed up to `chunks` of the lease's chunks, and maps it everywhere.
  Status Extend(HandOver& hand_over, const wire::Lease& lease, std::size_t chunks);
  // Unmaps everywhere what is behind the first `chunks` chunks, and lets go of it.
  Status Truncate(std::size_t chunks);
  // After a call that failed: both sides have the first `chunks` chunks again, where that can be.
  void Undo(std::size_t chunks);
  // ---- suspend_record.cc, under LeaseHold::resizing
  Status SuspendableHere() const;
  Status NotAway() const;
  driver::DriverChoice Choice() const;
  Status MakeRoom(std::chrono::milliseconds wait);
  // Says which chunks are here. Gives who still has to let go.
  Result<std::vector<wire::Holder>> AskSuspend(Deadline deadline);
  // All chunks are here, and what is in them is right.
  Status AskResident(Deadline deadline);
  // From the chunks, and into chunks of its own.
  Status MoveOut(const SuspendOptions& options);
  Status MoveIn(const ResumeOptions& options);
  void RunBefore();
  void RunAfter();
  // Under LeaseHold::mutex.
  std::vector<DeviceChunk> DeviceChunks() const;
  Status MapIpc(const MapOptions& options, MappedRange& range);
  Status MapDevice(const MapOptions& options, MappedRange& range);
  Status MapHost(MappedRange& range);
  Status RegisterHost(const MapOptions& options, MappedRange& range);
  Result<std::shared_ptr<MappedRange>> MapRange(const std::shared_ptr<LeaseRecord>& self,
                                                const MapOptions& options, bool plain);

  std::shared_ptr<Session> session_;
  std::shared_ptr<LeaseHold> hold_;
  wire::Lease lease_;
  HandedLease handed_;
  Access access_ = Access::kReadWrite;
  std::unique_ptr<Publication> order_;
};

}  // namespace abi_v1
}  // namespace gpulease
