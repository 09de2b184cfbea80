// SPDX-License-Identifier: Apache-2.0
//
// LeaseRecord: a lease that gets another size while it is mapped.
#include <algorithm>
#include <thread>
#include <utility>

#include "client/sdk/src/hand_over.h"
#include "client/sdk/src/lease_record.h"
#include "client/sdk/src/suspend_room.h"

namespace gpulease {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A wait that is longer than a call is none: the daemon ends it by the request's own `wait`.
constexpr std::chrono::hours kLongest{48};
// Between looks whether the holders have let go of what is to go.
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{20};
// How long what went wrong is undone, at most.
constexpr std::chrono::seconds kUndoPatience{2};
// An owner that shrinks it again and again does not keep a holder busy for ever.
constexpr int kMostRefreshes = 16;

}  // namespace

inline namespace abi_v1 {

struct LeaseRecord::Answer {
  std::uint64_t growth_id = 0;
  std::vector<wire::Holder> waits_for;
};

CallTerms LeaseRecord::Terms(Deadline deadline) const {
  return {.deadline = deadline, .epoch = hold_->epoch, .subject = Subject()};
}

std::size_t LeaseRecord::HasChunks() const {
  std::lock_guard lock(hold_->mutex);
  return hold_->chunks.size();
}

Status LeaseRecord::Extend(HandOver& hand_over, const wire::Lease& lease, std::size_t chunks) {
  const std::size_t has = HasChunks();
  if (lease.chunks.size() < chunks || chunks < has) {
    return MakeError(Code::kInternal, Reason::kHandOver,
                     Subject() + ": the daemon hands over chunks that it does not have");
  }
  Result<std::vector<LocalFd>> handed = hand_over.CollectSome(lease_.lease_id, chunks - has);
  if (!handed.ok()) return std::move(handed).error();
  std::vector<DeviceChunk> more;
  Bytes bytes = 0;
  for (std::size_t i = has; i < chunks; ++i) {
    more.push_back({(*handed)[i - has].get(), lease.chunks[i].size_bytes});
    bytes += lease.chunks[i].size_bytes;
  }
  std::lock_guard lock(hold_->mutex);
  for (MappedRange* range : hold_->live) {
    Status grown = range->device->Grow(Subject() + " on " + lease_.gpu_uuid, more);
    if (grown.ok()) continue;
    for (MappedRange* other : hold_->live)
      static_cast<void>(other->device->Shrink(Subject(), has).ok());
    return grown;
  }
  for (std::size_t i = 0; i < more.size(); ++i) {
    hold_->descriptors.push_back(std::move((*handed)[i]));
    hold_->chunks.push_back(more[i].size);
  }
  hold_->size += bytes;
  return {};
}

Status LeaseRecord::Truncate(std::size_t chunks) {
  std::lock_guard lock(hold_->mutex);
  for (MappedRange* range : hold_->live) {
    Status shrunk = range->device->Shrink(Subject() + " on " + lease_.gpu_uuid, chunks);
    if (shrunk.ok()) continue;
    const std::vector<DeviceChunk> all = DeviceChunks();
    for (MappedRange* other : hold_->live) {
      static_cast<void>(
          other->device->Grow(Subject(), std::span(all).subspan(other->device->chunks())).ok());
    }
    return shrunk;
  }
  while (hold_->chunks.size() > chunks) {
    hold_->size -= hold_->chunks.back();
    hold_->chunks.pop_back();
    hold_->descriptors.pop_back();
  }
  return {};
}

Result<LeaseRecord::Answer> LeaseRecord::AskFor(Bytes size, milliseconds wait) {
  const std::size_t has = HasChunks();
  HandOver hand_over(session_, false);
  wire::ResizeRequest request;
  request.lease_id = lease_.lease_id;
  request.size_bytes = size;
  request.have_chunks = static_cast<std::uint32_t>(has);
  request.wait_ms = static_cast<std::uint64_t>(std::max(wait, milliseconds(0)).count());
  auto reply = hand_over.Call<wire::ResizeMethod>(request, Terms(session_->CallDeadline()));
  if (!reply.ok()) return std::move(reply).error();
  if (!reply->lease) {
    return MakeError(Code::kInternal, Reason::kUnspecified,
                     Subject() + ": the daemon answers without the lease");
  }
  if (reply->open_chunks > has)
    GPULEASE_RETURN_IF_ERROR(Extend(hand_over, *reply->lease, reply->open_chunks));
  hold_->requested = reply->lease->requested_bytes;
  return Answer{reply->growth_id, std::move(reply->waits_for)};
}

Status LeaseRecord::AwaitGrowth(std::uint64_t growth_id, Deadline deadline) {
  HandOver hand_over(session_, false);
  wire::AwaitRequest request;
  request.lease_id = growth_id;
  auto reply = hand_over.Call<wire::AwaitMethod>(request, Terms(deadline));
  if (!reply.ok()) return std::move(reply).error();
  if (reply->leases.size() != 1 || reply->leases.front().lease_id != lease_.lease_id) {
    return MakeError(Code::kInternal, Reason::kUnspecified,
                     Subject() + ": the daemon answers the wait with another lease");
  }
  const wire::Lease& lease = reply->leases.front();
  GPULEASE_RETURN_IF_ERROR(Extend(hand_over, lease, lease.chunks.size()));
  hold_->requested = lease.requested_bytes;
  return {};
}

Result<std::vector<wire::Holder>> LeaseRecord::Resize(Bytes size, milliseconds wait) {
  GPULEASE_RETURN_IF_ERROR(Usable());
  if (lease_.reserved_bytes == 0) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     Subject() + " keeps its size: allocate one with reserve_bytes to resize it");
  }
  if (!hold_->owned) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                     Subject() + " belongs to " + lease_.owner + ", who alone resizes it");
  }
  if (size == 0 || size > lease_.reserved_bytes) {
    return MakeError(Code::kInvalidArgument, Reason::kBadField,
                     "size_bytes: asked " + std::to_string(size) + ", may be 1 to the " +
                         std::to_string(lease_.reserved_bytes) + " that " + Subject() +
                         " has reserved");
  }
  std::lock_guard resizing(hold_->resizing);
  GPULEASE_RETURN_IF_ERROR(NotAway());
  std::size_t before = 0;
  std::size_t left = 0;
  {
    std::lock_guard lock(hold_->mutex);
    before = hold_->chunks.size();
    for (Bytes kept = 0; left < before && kept < size; ++left) kept += hold_->chunks[left];
  }
  if (left < before) GPULEASE_RETURN_IF_ERROR(Truncate(left));
  const Deadline ends = steady_clock::now() + std::min<milliseconds>(wait, kLongest);
  milliseconds pause = kFirstPause;
  for (;;) {
    auto answer = AskFor(size, std::chrono::ceil<milliseconds>(ends - steady_clock::now()));
    Status status = answer.ok() ? Status() : Status(answer.error());
    if (answer.ok() && answer->growth_id != 0) {
      status = AwaitGrowth(answer->growth_id, ends + session_->options().call_timeout);
      if (status.ok()) return std::vector<wire::Holder>();
      // A daemon that was restarted knows those who have memory, not those who wait for it.
      if (status.error().reason == Reason::kNotOpenable && steady_clock::now() < ends) continue;
    }
    if (!status.ok()) {
      Undo(before);
      return std::move(status).error();
    }
    if (answer->waits_for.empty() || steady_clock::now() + pause >= ends)
      return std::move(answer->waits_for);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

void LeaseRecord::Undo(std::size_t chunks) {
  const std::size_t has = HasChunks();
  if (has < chunks) {
    // What the daemon did not take back after all is mapped again.
    static_cast<void>(CatchUp().ok());
    return;
  }
  if (!Truncate(chunks).ok()) return;
  // The daemon may have given what could not be mapped here, or be about to.
  wire::ResizeRequest request;
  request.lease_id = lease_.lease_id;
  request.size_bytes = hold_->size;
  request.have_chunks = static_cast<std::uint32_t>(chunks);
  HandOver hand_over(session_, false);
  static_cast<void>(
      hand_over.Call<wire::ResizeMethod>(request, Terms(steady_clock::now() + kUndoPatience)).ok());
}

Result<bool> LeaseRecord::Refresh() {
  GPULEASE_RETURN_IF_ERROR(Usable());
  if (lease_.kind != wire::MemoryKind::kDevice) return false;
  std::lock_guard resizing(hold_->resizing);
  // What its owner suspended he resumes.
  if (hold_->owned && hold_->away) return false;
  return CatchUp();
}

Result<bool> LeaseRecord::CatchUp() {
  bool changed = false;
  for (int i = 0; i < kMostRefreshes; ++i) {
    const std::size_t has = HasChunks();
    HandOver hand_over(session_, false);
    wire::RefreshRequest request;
    request.lease_id = lease_.lease_id;
    request.have_chunks = static_cast<std::uint32_t>(has);
    request.takes_part = hold_->takes_part && !hold_->owned;
    auto reply = hand_over.Call<wire::RefreshMethod>(request, Terms(session_->CallDeadline()));
    if (!reply.ok()) return std::move(reply).error();
    if (!reply->lease ||
        (reply->open_chunks == 0 && reply->lease->residence == wire::Residence::kUnspecified)) {
      return MakeError(Code::kInternal, Reason::kUnspecified,
                       Subject() + ": the daemon answers without the lease");
    }
    hold_->requested = reply->lease->requested_bytes;
    if (reply->open_chunks == has) {
      // It was called off after hooks.before.
      if (!hold_->away) RunAfter();
      return changed;
    }
    changed = true;
    if (reply->open_chunks > has) {
      GPULEASE_RETURN_IF_ERROR(Extend(hand_over, *reply->lease, reply->open_chunks));
      if (hold_->away.exchange(false)) RunAfter();
      return true;
    }
    if (reply->open_chunks == 0) {
      RunBefore();
      GPULEASE_RETURN_IF_ERROR(SynchronizeContext(Choice()));
      GPULEASE_RETURN_IF_ERROR(Truncate(0));
      hold_->away = true;
      continue;
    }
    // The daemon hears of it with the next.
    GPULEASE_RETURN_IF_ERROR(Truncate(reply->open_chunks));
  }
  return changed;
}

}  // namespace abi_v1
}  // namespace gpulease
