// SPDX-License-Identifier: Apache-2.0
//
// LeaseRecord: a lease that gives its memory back and keeps its addresses.
#include <algorithm>
#include <exception>
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
// Between looks whether the holders have let go.
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{20};
// How long what went wrong is undone, at most.
constexpr std::chrono::seconds kUndoPatience{2};

}  // namespace

inline namespace abi_v1 {

Status LeaseRecord::SuspendableHere() const {
  GPULEASE_RETURN_IF_ERROR(Usable());
  if (lease_.kind != wire::MemoryKind::kDevice) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     Subject() + " is host memory: only GPU memory can be suspended");
  }
  if (!hold_->owned) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                     Subject() + " belongs to " + lease_.owner +
                         ", who alone suspends and resumes it: TakePart() in that");
  }
  return {};
}

Status LeaseRecord::NotAway() const {
  if (!hold_->away) return {};
  return MakeError(Code::kFailedPrecondition, Reason::kSuspended,
                   Subject() + " is suspended: retry once it is resumed");
}

driver::DriverChoice LeaseRecord::Choice() const {
  return DriverOf(session_->link().handles->welcome());
}

Status LeaseRecord::PrepareSuspend(milliseconds wait) {
  GPULEASE_RETURN_IF_ERROR(SuspendableHere());
  std::lock_guard resizing(hold_->resizing);
  return MakeRoom(wait);
}

Status LeaseRecord::MakeRoom(milliseconds wait) {
  if (hold_->away || (hold_->room && hold_->room->size() >= hold_->size)) return {};
  hold_->room.reset();
  auto room = SuspendRoom::Make(session_, lease_, hold_->size, wait);
  if (!room.ok()) return std::move(room).error();
  hold_->room = std::move(*room);
  return {};
}

Status LeaseRecord::DropSuspendRoom() {
  GPULEASE_RETURN_IF_ERROR(SuspendableHere());
  std::lock_guard resizing(hold_->resizing);
  if (hold_->away && !hold_->discarded) {
    return MakeError(Code::kFailedPrecondition, Reason::kSuspended,
                     Subject() + " is suspended, and its contents are there: Resume() it first");
  }
  hold_->room.reset();
  return {};
}

Result<std::vector<wire::Holder>> LeaseRecord::AskSuspend(Deadline deadline) {
  wire::SuspendRequest request;
  request.lease_id = lease_.lease_id;
  request.have_chunks = static_cast<std::uint32_t>(HasChunks());
  auto reply = session_->Call<wire::SuspendMethod>(
      std::move(request), Terms(deadline),
      [](auto& sent, const Link& link) { sent.session_id = link.session_id; });
  if (!reply.ok()) return std::move(reply).error();
  return std::move(reply->waits_for);
}

Status LeaseRecord::AskResident(Deadline deadline) {
  HandOver hand_over(session_, false);
  wire::ResumeRequest request;
  request.lease_id = lease_.lease_id;
  request.have_chunks = static_cast<std::uint32_t>(HasChunks());
  auto reply = hand_over.Call<wire::ResumeMethod>(request, Terms(deadline));
  if (!reply.ok()) return std::move(reply).error();
  return {};
}

void LeaseRecord::RunBefore() {
  if (hold_->after_due || !hold_->hooks.before) {
    hold_->after_due = true;
    return;
  }
  hold_->hooks.before();
  hold_->after_due = true;
}

void LeaseRecord::RunAfter() {
  if (!std::exchange(hold_->after_due, false) || !hold_->hooks.after) return;
  hold_->hooks.after();
}

Status LeaseRecord::MoveOut(const SuspendOptions& options) {
  RunBefore();
  if (options.discard) {
    GPULEASE_RETURN_IF_ERROR(SynchronizeContext(Choice()));
  } else {
    std::vector<DeviceChunk> chunks;
    {
      std::lock_guard lock(hold_->mutex);
      chunks = DeviceChunks();
    }
    GPULEASE_RETURN_IF_ERROR(hold_->room->CopyIn(
        {Subject() + " on " + lease_.gpu_uuid, chunks, lease_.alignment_bytes}, options.progress));
  }
  return Truncate(0);
}

Result<std::vector<wire::Holder>> LeaseRecord::Suspend(const SuspendOptions& options) {
  GPULEASE_RETURN_IF_ERROR(SuspendableHere());
  std::lock_guard resizing(hold_->resizing);
  if (hold_->away) return AskSuspend(session_->CallDeadline());
  const Deadline ends = steady_clock::now() + std::min<milliseconds>(options.wait, kLongest);
  // Before anybody is asked to let go.
  if (!options.discard) GPULEASE_RETURN_IF_ERROR(MakeRoom(options.wait));
  milliseconds pause = kFirstPause;
  for (;;) {
    auto waits_for = AskSuspend(session_->CallDeadline());
    if (!waits_for.ok()) return std::move(waits_for).error();
    if (waits_for->empty()) break;
    if (steady_clock::now() + pause >= ends) return waits_for;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
  // Now it is in the hands of this process alone.
  const auto call_off = [&] {
    static_cast<void>(AskResident(steady_clock::now() + kUndoPatience).ok());
    RunAfter();
  };
  try {
    if (Status moved = MoveOut(options); !moved.ok()) {
      call_off();
      return std::move(moved).error();
    }
  } catch (...) {
    call_off();
    throw;
  }
  hold_->discarded = options.discard;
  hold_->away = true;
  auto left = AskSuspend(session_->CallDeadline());
  if (!left.ok()) {
    return WithContext(Subject() +
                           " is unmapped here and its contents are kept, but the daemon did not "
                           "take its memory back: suspend it again, or resume it",
                       std::move(left).error());
  }
  return left;
}

Status LeaseRecord::MoveIn(const ResumeOptions& options) {
  const Deadline ends = steady_clock::now() + std::min<milliseconds>(options.wait, kLongest);
  // An attempt that could not be undone has it here already.
  for (bool there = HasChunks() > 0; !there;) {
    HandOver hand_over(session_, false);
    wire::ResumeRequest request;
    request.lease_id = lease_.lease_id;
    request.wait_ms = static_cast<std::uint64_t>(
        std::max(std::chrono::ceil<milliseconds>(ends - steady_clock::now()), milliseconds(0))
            .count());
    auto reply = hand_over.Call<wire::ResumeMethod>(request, Terms(session_->CallDeadline()));
    if (!reply.ok()) return std::move(reply).error();
    there = reply->growth_id == 0;
    if (there) {
      if (!reply->lease || reply->open_chunks == 0) {
        return MakeError(Code::kInternal, Reason::kUnspecified,
                         Subject() + ": the daemon answers without the lease");
      }
      GPULEASE_RETURN_IF_ERROR(Extend(hand_over, *reply->lease, reply->open_chunks));
      continue;
    }
    Status grown = AwaitGrowth(reply->growth_id, ends + session_->options().call_timeout);
    there = grown.ok();
    // A daemon that was restarted knows those who have memory, not those who wait for it.
    if (!there && (grown.error().reason != Reason::kNotOpenable || steady_clock::now() >= ends))
      return grown;
  }
  if (hold_->discarded) return {};
  std::vector<DeviceChunk> chunks;
  {
    std::lock_guard lock(hold_->mutex);
    chunks = DeviceChunks();
  }
  return hold_->room->CopyOut(
      {Subject() + " on " + lease_.gpu_uuid, chunks, lease_.alignment_bytes}, options.progress);
}

Status LeaseRecord::Resume(const ResumeOptions& options) {
  GPULEASE_RETURN_IF_ERROR(SuspendableHere());
  std::lock_guard resizing(hold_->resizing);
  if (hold_->away) {
    const auto give_back = [&] {
      if (!Truncate(0).ok()) return;
      static_cast<void>(AskSuspend(steady_clock::now() + kUndoPatience).ok());
    };
    try {
      if (Status moved = MoveIn(options); !moved.ok()) {
        give_back();
        return moved;
      }
    } catch (...) {
      give_back();
      throw;
    }
    // Also when the daemon does not hear of it just now: the next call tells it.
    hold_->away = false;
  }
  GPULEASE_RETURN_IF_ERROR(AskResident(session_->CallDeadline()));
  RunAfter();
  return {};
}

Status LeaseRecord::TakePart(SuspendHooks hooks) {
  GPULEASE_RETURN_IF_ERROR(Usable());
  if (lease_.kind != wire::MemoryKind::kDevice) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     Subject() + " is host memory: only GPU memory is suspended");
  }
  std::lock_guard resizing(hold_->resizing);
  hold_->hooks = std::move(hooks);
  hold_->takes_part = true;
  if (hold_->owned) return {};
  Result<bool> told = CatchUp();
  return told.ok() ? Status() : Status(std::move(told).error());
}

}  // namespace abi_v1
}  // namespace gpulease
