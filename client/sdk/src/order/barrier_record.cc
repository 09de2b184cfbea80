// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/order/barrier_record.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "client/sdk/src/leasing.h"

namespace gpulease {
namespace {

using std::chrono::steady_clock;

// Between attempts to join.
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{20};
// Of the question who is left, to a daemon that may have come back just now.
constexpr std::chrono::seconds kQuestion{2};
constexpr std::chrono::hours kLongestWait{24 * 365};
constexpr char kLabel[] = "gpulease.barrier";

steady_clock::time_point EndOf(std::chrono::milliseconds timeout) {
  return steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, kLongestWait);
}

// The lease of the name, made here unless somebody has.
Result<std::shared_ptr<LeaseRecord>> MakeOrOpen(const std::shared_ptr<Session>& session,
                                                const BarrierOptions& options) {
  if (options.name.find('/') == std::string::npos) {
    AllocateOptions page;
    page.size_bytes = kOrderPageBytes;
    page.kind = MemoryKind::kHost;
    page.page_size = PageSize::kSmall;
    page.name = options.name;
    page.mode = options.mode;
    page.gid = options.gid;
    page.death_notice = true;
    page.labels = {{kLabel, std::to_string(options.participants)}};
    auto made = AllocateRecords(session, {&page, 1}, std::chrono::milliseconds(0));
    if (made.ok() && !made->front()->lease().death_notice) {
      return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                       "the daemon knows no death notice of a lease: update gpuleased");
    }
    if (made.ok()) return std::move(made->front());
    if (made.error().reason != Reason::kNameTaken) return std::move(made).error();
  }
  wire::OpenRequest request;
  request.name = options.name;
  return OpenRecord(session, std::move(request), Access::kReadWrite);
}

}  // namespace

inline namespace abi_v1 {

BarrierRecord::BarrierRecord(std::shared_ptr<Session> session, const BarrierOptions& options)
    : session_(std::move(session)), name_(options.name), participants_(options.participants) {}

BarrierRecord::~BarrierRecord() {
  if (!session_->inherited()) Leave();
}

void BarrierRecord::Leave() {
  if (page_) page_->BreakUp(BarrierPage::Break::kLeft, slot_);
  page_.reset();
  range_.reset();
  lease_.reset();
}

Result<std::shared_ptr<BarrierRecord>> BarrierRecord::Join(const std::shared_ptr<Session>& session,
                                                           const BarrierOptions& options) {
  GPULEASE_RETURN_IF_ERROR(session->ok());
  if (options.name.empty())
    return MakeError(Code::kInvalidArgument, Reason::kBadField, "a barrier needs a name");
  if (options.participants == 0 || options.participants > kMostParticipants) {
    return MakeError(Code::kInvalidArgument, Reason::kBadField,
                     "barrier " + options.name + ": asked for " +
                         std::to_string(options.participants) + " participants, may be 1 to " +
                         std::to_string(kMostParticipants));
  }
  const Time until = EndOf(options.timeout);
  std::chrono::milliseconds pause = kFirstPause;
  for (;;) {
    Error obstacle;
    auto joined = TryJoin(session, options, obstacle);
    if (!joined.ok() || *joined) return joined;
    if (steady_clock::now() + pause >= until) return obstacle;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

Result<std::shared_ptr<BarrierRecord>> BarrierRecord::TryJoin(
    const std::shared_ptr<Session>& session, const BarrierOptions& options, Error& obstacle) {
  const std::string subject = "barrier " + options.name;
  const auto again = [&](std::string why) {
    obstacle = MakeError(Code::kDeadlineExceeded, Reason::kWaitOver, subject + why);
    return std::shared_ptr<BarrierRecord>();
  };
  auto lease = MakeOrOpen(session, options);
  if (!lease.ok()) {
    const Error& error = lease.error();
    // Not made yet, just being made, or ended between two steps.
    const bool passing = error.reason == Reason::kNotOpenable || error.code == Code::kAborted ||
                         (error.code == Code::kFailedPrecondition &&
                          error.reason == Reason::kUnspecified && session->ok().ok());
    if (!passing) return WithContext(subject, error);
    obstacle = WithContext(subject, error);
    return std::shared_ptr<BarrierRecord>();
  }
  const wire::Lease& of = (*lease)->lease();
  const auto other = [&](std::string why, Reason reason) {
    return MakeError(Code::kFailedPrecondition, reason, subject + ": " + why);
  };
  if (of.kind != wire::MemoryKind::kHost || !of.death_notice || of.size_bytes < kOrderPageBytes)
    return other("the lease of this name is no barrier", Reason::kNameTaken);
  std::shared_ptr<BarrierRecord> record(new BarrierRecord(session, options));
  auto range = (*lease)->MapPlain(*lease);
  if (!range.ok()) return std::move(range).error();
  BarrierPage page((*range)->host->address());
  record->lease_id_ = of.lease_id;
  record->lease_ = std::move(*lease);
  record->range_ = std::move(*range);
  // Who allocated it makes the barrier; nobody else writes to a page that is empty.
  const bool made = record->lease_->owned() && page.form() == BarrierPage::Form::kEmpty;
  if (made) page.Lay(options.participants);
  switch (page.form()) {
    case BarrierPage::Form::kBarrier:
      break;
    case BarrierPage::Form::kEmpty:
      return again(": who makes it has not done so yet");
    case BarrierPage::Form::kForeign:
      return other("the lease of this name is no barrier", Reason::kNameTaken);
    case BarrierPage::Form::kOtherVersion:
      return other("it was made by another version of libgpulease", Reason::kUnsupported);
  }
  if (page.broken().why != BarrierPage::Break::kNone) {
    // Its name is given free by its owner when he looks; who comes anew as the owner looks now.
    if (record->lease_->owned()) static_cast<void>(record->lease_->Disclaim().ok());
    return again(" is broken, and its owner " + of.owner + " still has it");
  }
  if (page.participants() != options.participants) {
    return other("it has " + std::to_string(page.participants()) + " participants, asked for " +
                     std::to_string(options.participants),
                 Reason::kBadField);
  }
  const std::optional<unsigned> slot =
      page.Join({session->link().session_id, static_cast<std::uint32_t>(getpid())});
  if (!slot) return again(" has all of its " + std::to_string(options.participants));
  record->slot_ = *slot;
  record->page_.emplace(record->range_->host->address());
  return record;
}

std::string BarrierRecord::NameOf(unsigned slot) const {
  const BarrierPage::Participant who = page_->Of(slot);
  return "participant " + std::to_string(slot) + " (pid " + std::to_string(who.pid) + ")";
}

std::string BarrierRecord::WhoIsGone() {
  wire::GetLeaseRequest request;
  request.lease_id = lease_id_;
  const auto reply =
      session_->Call<wire::GetLeaseMethod>(request, {.deadline = steady_clock::now() + kQuestion});
  std::string gone;
  if (reply.ok() && reply->lease) {
    std::set<std::uint64_t> there;
    for (const wire::Holder& holder : reply->lease->holders) there.insert(holder.session_id);
    for (unsigned slot = 0; slot < page_->joined(); ++slot) {
      const BarrierPage::Participant who = page_->Of(slot);
      if (who.session == 0 || there.contains(who.session)) continue;
      gone += (gone.empty() ? "" : ", ") + NameOf(slot);
    }
  }
  return gone.empty() ? "a process that had it open" : gone;
}

Error BarrierRecord::Explain(const BarrierPage::Broken& broken) {
  const std::string subject = "barrier " + name_ + " is broken: ";
  const std::string anew = "; join it anew";
  const bool mine = broken.slot == slot_;
  switch (broken.why) {
    case BarrierPage::Break::kTimedOut:
      if (mine) {
        return MakeError(Code::kDeadlineExceeded, Reason::kWaitOver,
                         subject + std::to_string(page_->arrived()) + " of " +
                             std::to_string(participants_) + " came within the timeout" + anew);
      }
      return MakeError(Code::kAborted, Reason::kPeerGone,
                       subject + "the wait of " + NameOf(broken.slot) + " was over" + anew);
    case BarrierPage::Break::kLeft:
      return MakeError(Code::kAborted, Reason::kPeerGone,
                       subject + NameOf(broken.slot) + " left" + anew);
    case BarrierPage::Break::kLost:
      return MakeError(mine ? Code::kFailedPrecondition : Code::kAborted,
                       mine ? Reason::kSessionEnded : Reason::kPeerGone,
                       subject + "the daemon ended the session of " + NameOf(broken.slot) +
                           ", or was restarted without its keeper" + anew);
    case BarrierPage::Break::kDied:
      return MakeError(Code::kAborted, Reason::kPeerGone,
                       subject + WhoIsGone() + " died, or the daemon ended its session" + anew);
    case BarrierPage::Break::kNone:
    case BarrierPage::Break::kNonsense:
      break;
  }
  return MakeError(Code::kAborted, Reason::kPeerGone,
                   subject + "somebody wrote over its memory" + anew);
}

bool BarrierRecord::broken() {
  if (waiting_.exchange(true)) return false;  // the thread that waits finds it
  const bool is = !page_ || page_->broken().why != BarrierPage::Break::kNone;
  waiting_ = false;
  return is;
}

Result<bool> BarrierRecord::Wait(std::chrono::milliseconds timeout) {
  GPULEASE_RETURN_IF_ERROR(session_->ok());
  if (waiting_.exchange(true)) {
    return MakeError(
        Code::kFailedPrecondition, Reason::kUnspecified,
        "another thread waits with this Barrier: each that takes part joins for itself");
  }
  struct Waiting {
    std::atomic<bool>& flag;
    ~Waiting() { flag = false; }
  } const waiting{waiting_};
  if (error_) return *error_;
  if (!lease_->Usable().ok()) page_->BreakUp(BarrierPage::Break::kLost, slot_);
  const Time until = timeout == Barrier::kForever ? Time::max() : EndOf(timeout);
  bool last = false;
  const bool ended = page_->Wait(slot_, until, last, [&]() -> std::optional<BarrierPage::Break> {
    session_->Refresh();
    if (lease_->Usable().ok()) return std::nullopt;
    return BarrierPage::Break::kLost;
  });
  if (ended) return last;
  error_ = Explain(page_->broken());
  page_.reset();
  range_.reset();
  lease_.reset();
  return *error_;
}

}  // namespace abi_v1
}  // namespace gpulease
