// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/pending_record.h"

#include <algorithm>
#include <utility>

#include "client/sdk/src/conversion.h"
#include "client/sdk/src/order/publication.h"

namespace gpulease {
inline namespace abi_v1 {

using std::chrono::steady_clock;

namespace {

// A wait that is longer than a call is none: the daemon ends it by the request's own `wait`.
constexpr std::chrono::hours kLongest{48};

}  // namespace

Result<std::shared_ptr<PendingRecord>> PendingRecord::Request(
    std::shared_ptr<Session> session, std::span<const AllocateOptions> options,
    std::chrono::milliseconds wait, bool loading) {
  GPULEASE_RETURN_IF_ERROR(session->ok());
  if (options.empty()) {
    return MakeError(Code::kInvalidArgument, Reason::kBadField, "asked to allocate nothing");
  }
  std::shared_ptr<PendingRecord> pending(new PendingRecord);
  wire::AllocateRequest& request = pending->request_;
  for (const AllocateOptions& one : options) {
    wire::AllocationSpec spec = SpecOf(one);
    std::shared_ptr<LeaseRecord> companion;
    if (one.ordered) {
      if (one.persistent || one.linger.count() > 0) {
        return MakeError(
            Code::kInvalidArgument, Reason::kBadField,
            "ordered: orders living processes, and is not for what outlives its owner");
      }
      auto made = Publication::Allocate(session, one);
      if (!made.ok()) return std::move(made).error();
      companion = std::move(*made);
      spec.labels[Publication::kLabel] = std::to_string(companion->lease().lease_id);
    }
    pending->companions_.push_back(std::move(companion));
    spec.loading = loading;
    request.specs.push_back(std::move(spec));
  }
  request.wait_ms = wait.count() > 0 ? static_cast<std::uint64_t>(wait.count()) : 0;
  request.request_id =
      options.front().request_id.empty() ? session->NextRequestId() : options.front().request_id;
  pending->wait_ends_ = steady_clock::now() + std::min<std::chrono::milliseconds>(wait, kLongest);
  pending->hand_over_ = std::make_unique<HandOver>(session, true);
  std::lock_guard lock(pending->mutex_);
  GPULEASE_RETURN_IF_ERROR(pending->Ask());
  for (const wire::Lease& lease : pending->leases_) {
    for (const wire::Blocker& blocker : lease.blockers)
      pending->blockers_.push_back(BlockingOf(blocker));
  }
  return pending;
}

Status PendingRecord::Ask() {
  auto reply = hand_over_->Call<wire::AllocateMethod>(
      request_, {.deadline = hand_over_->session()->CallDeadline()});
  over_ = true;
  if (!reply.ok()) return std::move(reply).error();
  if (reply->leases.size() != request_.specs.size()) {
    return MakeError(Code::kInternal, Reason::kUnspecified,
                     "the daemon granted other leases than were asked for");
  }
  over_ = false;
  hand_over_->Promise(reply->leases);
  epoch_ = hand_over_->epoch();
  position_ = reply->queue_position;
  leases_ = std::move(reply->leases);
  return {};
}

PendingRecord::~PendingRecord() {
  // The hand-over gives back what was promised and not picked up. In a forked child its locks may
  // be held for ever.
  if (hand_over_ && hand_over_->session()->inherited()) (void)hand_over_.release();
}

bool PendingRecord::QueuedLocked() const {
  return leases_.front().state == wire::LeaseState::kQueued;
}

bool PendingRecord::queued() const {
  std::lock_guard lock(mutex_);
  return QueuedLocked();
}

std::uint64_t PendingRecord::first_id() const {
  std::lock_guard lock(mutex_);
  return leases_.front().lease_id;
}

std::uint32_t PendingRecord::position() const {
  std::lock_guard lock(mutex_);
  return position_;
}

Result<std::vector<std::shared_ptr<LeaseRecord>>> PendingRecord::Wait(
    std::chrono::milliseconds timeout) {
  const std::shared_ptr<Session>& session = hand_over_->session();
  GPULEASE_RETURN_IF_ERROR(session->ok());
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<LeaseRecord>> records;
  if (over_) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                     "the request was cancelled, failed or picked up before");
  }
  const auto until = steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, kLongest);
  while (QueuedLocked()) {
    wire::AwaitRequest request;
    request.lease_id = leases_.front().lease_id;
    auto reply = hand_over_->Call<wire::AwaitMethod>(
        request, {.deadline = until, .epoch = epoch_, .subject = "the request in the queue"});
    if (!reply.ok()) {
      Error& error = reply.error();
      if (error.code == Code::kDeadlineExceeded && error.reason != Reason::kWaitOver) {
        return records;
      }
      // A daemon that was restarted knows those who have memory, not those who wait for it.
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(wait_ends_ - steady_clock::now());
      if (error.reason == Reason::kNotOpenable && left.count() > 0) {
        request_.wait_ms = static_cast<std::uint64_t>(left.count());
        GPULEASE_RETURN_IF_ERROR(Ask());
        continue;
      }
      over_ = true;
      return std::move(error);
    }
    leases_ = std::move(reply->leases);
    if (leases_.empty() || QueuedLocked()) {
      over_ = true;
      return MakeError(Code::kInternal, Reason::kUnspecified,
                       "the daemon answered a wait without the leases");
    }
  }
  over_ = true;
  auto handed = hand_over_->Collect(leases_);
  if (!handed.ok()) {
    hand_over_->GiveBack();
    return std::move(handed).error();
  }
  for (std::size_t i = 0; i < leases_.size(); ++i) {
    std::shared_ptr<LeaseRecord> record =
        LeaseRecord::Make(session, hand_over_->epoch(), leases_[i], std::move((*handed)[i]), true,
                          Access::kReadWrite);
    // Nobody else can be ending a lease that has just been made.
    if (record) records.push_back(std::move(record));
  }
  for (std::size_t i = 0; i < records.size(); ++i) {
    GPULEASE_RETURN_IF_ERROR(Publication::Attach(*records[i], std::move(companions_[i])));
  }
  return records;
}

Status PendingRecord::Cancel() {
  GPULEASE_RETURN_IF_ERROR(hand_over_->session()->ok());
  std::lock_guard lock(mutex_);
  if (std::exchange(over_, true)) return {};
  hand_over_->GiveBack();
  companions_.clear();
  return {};
}

}  // namespace abi_v1
}  // namespace gpulease
