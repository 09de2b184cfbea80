// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/order/publication.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "client/sdk/src/leasing.h"

namespace gpulease {
namespace {

using std::chrono::steady_clock;

// Between looks at the connection while nothing happens.
constexpr std::chrono::seconds kSlice{1};
// Of a question to a daemon that may be away.
constexpr std::chrono::seconds kQuestion{1};
// Between looks at an event that is not complete.
constexpr std::chrono::microseconds kFirstPause{20};
constexpr std::chrono::microseconds kLongestPause{500};
constexpr std::chrono::hours kLongestWait{24 * 365};

steady_clock::time_point EndOf(std::chrono::milliseconds timeout) {
  return steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, kLongestWait);
}

std::uint64_t NumberOf(const std::string& text) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end ? number : 0;
}

// Makes a stream's context the current one.
class Inside {
 public:
  static Result<Inside> Of(const driver::CudaDriver& cuda, cuda::CUstream stream) {
    cuda::CUcontext context = nullptr;
    auto result = cuda.cuStreamGetCtx(stream, &context);
    if (result != cuda::CUDA_SUCCESS) return cuda.MakeError("cuStreamGetCtx", result);
    result = cuda.cuCtxPushCurrent(context);
    if (result != cuda::CUDA_SUCCESS) return cuda.MakeError("cuCtxPushCurrent", result);
    return Inside(cuda, context);
  }
  // A context that may have been destroyed: then it does nothing.
  static Inside Try(const driver::CudaDriver& cuda, cuda::CUcontext context) {
    Inside inside(cuda, context);
    if (cuda.cuCtxPushCurrent(context) != cuda::CUDA_SUCCESS) inside.cuda_ = nullptr;
    return inside;
  }
  Inside(Inside&& other) noexcept : cuda_(std::exchange(other.cuda_, nullptr)) {
    context_ = other.context_;
  }
  Inside& operator=(Inside&&) = delete;
  ~Inside() {
    cuda::CUcontext popped = nullptr;
    if (cuda_ != nullptr) cuda_->cuCtxPopCurrent(&popped);
  }
  cuda::CUcontext context() const { return context_; }

 private:
  Inside(const driver::CudaDriver& cuda, cuda::CUcontext context)
      : cuda_(&cuda), context_(context) {}
  const driver::CudaDriver* cuda_;
  cuda::CUcontext context_;
};

}  // namespace

class Publication::Opened {
 public:
  Opened(std::shared_ptr<const CudaProcess> process, const EventHandle& handle, cuda::CUevent event)
      : process_(std::move(process)), handle_(handle), event_(event) {
    process_->cuda().cuCtxGetCurrent(&context_);
  }
  ~Opened() {
    if (generation_ != ForkGeneration()) return;
    const Inside inside = Inside::Try(process_->cuda(), context_);
    process_->cuda().cuEventDestroy(event_);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  const EventHandle& handle() const { return handle_; }
  cuda::CUevent event() const { return event_; }

 private:
  const std::shared_ptr<const CudaProcess> process_;
  const EventHandle handle_;
  const cuda::CUevent event_;
  cuda::CUcontext context_ = nullptr;  // in which it was opened
  const std::uint64_t generation_ = ForkGeneration();
};

// ------------------------------------------------------------------------------------------------
// the companion

Result<std::shared_ptr<LeaseRecord>> Publication::Allocate(const std::shared_ptr<Session>& session,
                                                           const AllocateOptions& options) {
  AllocateOptions page;
  page.size_bytes = kOrderPageBytes;
  page.kind = MemoryKind::kHost;
  page.page_size = PageSize::kSmall;
  page.mode = options.mode;
  page.gid = options.gid;
  page.death_notice = true;
  page.labels = {{"gpulease.order.of", options.name.empty() ? "unnamed" : options.name}};
  auto made = AllocateRecords(session, {&page, 1}, std::chrono::milliseconds(0));
  if (!made.ok()) return WithContext("the page for the order of a lease", std::move(made).error());
  std::shared_ptr<LeaseRecord> companion = std::move(made->front());
  if (!companion->lease().death_notice) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     "the daemon knows no death notice of a lease: update gpuleased");
  }
  auto range = companion->MapPlain(companion);
  if (!range.ok()) return std::move(range).error();
  PublicationPage((*range)->host->address()).Lay();
  return companion;
}

Status Publication::Attach(LeaseRecord& lease, std::shared_ptr<LeaseRecord> companion) {
  const wire::Lease& of = lease.lease();
  const auto label = of.labels.find(kLabel);
  const std::uint64_t id = label == of.labels.end() ? 0 : NumberOf(label->second);
  if (id == 0) return {};
  const std::string subject = "lease " + std::to_string(of.lease_id);
  // A retry of a request gets the lease that was made before, with the companion of that time.
  if (companion && companion->lease().lease_id != id) companion.reset();
  if (!companion) {
    wire::OpenRequest request;
    request.lease_id = id;
    auto opened = OpenRecord(lease.session(), std::move(request), lease.access());
    if (!opened.ok()) return WithContext("what orders " + subject, std::move(opened).error());
    companion = std::move(*opened);
  }
  // A label may name any lease: one that is not its owner's own is not written to.
  const wire::Lease& page = companion->lease();
  if (page.kind != wire::MemoryKind::kHost || !page.death_notice || page.uid != of.uid ||
      page.realm != of.realm || page.size_bytes < kOrderPageBytes) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     subject + ": its label " + kLabel + " names no lease that orders it");
  }
  auto range = companion->MapPlain(companion);
  if (!range.ok()) return std::move(range).error();
  if (!PublicationPage((*range)->host->address()).valid()) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     subject + ": what orders it was made by another version of libgpulease");
  }
  lease.Attach(std::unique_ptr<Publication>(
      new Publication(std::move(companion), std::move(*range), subject)));
  return {};
}

Publication::Publication(std::shared_ptr<LeaseRecord> companion, std::shared_ptr<MappedRange> range,
                         std::string subject)
    : companion_(std::move(companion)),
      range_(std::move(range)),
      subject_(std::move(subject)),
      page_(range_->host->address()) {}

Publication::~Publication() {
  if (!companion_->session()->inherited()) Leave();
}

void Publication::Leave() {
  std::lock_guard lock(mutex_);
  if (!range_) return;
  if (companion_->access() == Access::kReadWrite && page_.publisher().session == Me()) {
    // What is told of it is true: all is there when the event is not on the page any more.
    const PublicationPage::Event event = page_.event();
    for (const auto& [context, own] : own_) {
      const Inside inside = Inside::Try(process_->cuda(), context);
      process_->cuda().cuEventSynchronize(own.event);
      if (event.handle == own.handle) page_.SetEvent(std::nullopt, PublicationPage::kNobody);
    }
    page_.SetPublisher({PublicationPage::kLeft, static_cast<std::uint32_t>(getpid())});
    page_.bell().Ring();
  }
  for (const auto& [context, own] : own_) EventPool::PutBack(own);
  own_.clear();
  opened_.reset();
  range_.reset();
}

Status Publication::Close() {
  Leave();
  return companion_->Close();
}

Result<std::uint64_t> Publication::sequence() const {
  GPULEASE_RETURN_IF_ERROR(companion_->Usable());
  return page_.sequence();
}

// ------------------------------------------------------------------------------------------------
// publishing

Status Publication::Writable() const {
  GPULEASE_RETURN_IF_ERROR(companion_->Usable());
  if (companion_->access() == Access::kReadWrite) return {};
  return MakeError(Code::kPermissionDenied, Reason::kNotOpenable,
                   subject_ + " was opened for reading: who publishes opens it for writing");
}

Result<std::shared_ptr<const CudaProcess>> Publication::Cuda() const {
  Session& session = *companion_->session();
  if (!session.options().use_cuda) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     subject_ +
                         ": what is published after a stream needs CUDA, and this Client was "
                         "made with use_cuda = false: have it published after the stream was "
                         "synchronized, by Publish() without a stream");
  }
  return CudaProcess::Get(DriverOf(session.link().handles->welcome()));
}

std::uint64_t Publication::Me() const { return companion_->session()->link().session_id; }

void Publication::BecomePublisher() {
  const std::uint64_t me = Me();
  if (page_.publisher().session == me) return;
  page_.SetPublisher({me, static_cast<std::uint32_t>(getpid())});
}

Result<std::uint64_t> Publication::Publish() {
  GPULEASE_RETURN_IF_ERROR(Writable());
  std::lock_guard lock(mutex_);
  BecomePublisher();
  return page_.Announce();
}

Result<std::uint64_t> Publication::PublishAfter(void* stream_pointer) {
  GPULEASE_RETURN_IF_ERROR(Writable());
  auto process = Cuda();
  if (!process.ok()) return std::move(process).error();
  auto* const stream = static_cast<cuda::CUstream>(stream_pointer);
  std::lock_guard lock(mutex_);
  process_ = *process;
  auto inside = Inside::Of(process_->cuda(), stream);
  if (!inside.ok()) return WithContext("publish " + subject_, std::move(inside).error());
  const bool known = own_.contains(inside->context());
  Status recorded = Record(process_->cuda(), inside->context(), stream);
  // The context of the event may have been destroyed and made anew, and another event is needed.
  if (!recorded.ok() && known && !own_.contains(inside->context()))
    recorded = Record(process_->cuda(), inside->context(), stream);
  if (!recorded.ok()) return WithContext("publish " + subject_, std::move(recorded).error());
  return page_.Announce();
}

Status Publication::Record(const driver::CudaDriver& cuda, cuda::CUcontext context,
                           cuda::CUstream stream) {
  auto own = own_.find(context);
  const bool fresh = own == own_.end();
  if (fresh) {
    auto taken = EventPool::Take(cuda, context);
    if (!taken.ok()) return std::move(taken).error();
    own = own_.emplace(context, *taken).first;
  }
  const auto give_up = [&](Error error, bool stale) {
    if (fresh) {
      EventPool::PutBack(own->second);
      own_.erase(own);
    } else if (stale) {
      EventPool::Drop(own->second);
      own_.erase(own);
    }
    return error;
  };
  if (Status followed = Follow(cuda, stream, own->second); !followed.ok())
    return give_up(std::move(followed).error(), false);
  if (const auto result = cuda.cuEventRecord(own->second.event, stream);
      result != cuda::CUDA_SUCCESS) {
    return give_up(cuda.MakeError("cuEventRecord", result),
                   result == cuda::CUDA_ERROR_INVALID_HANDLE ||
                       result == cuda::CUDA_ERROR_INVALID_CONTEXT ||
                       result == cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED);
  }
  BecomePublisher();
  const std::uint64_t me = Me();
  const PublicationPage::Event event = page_.event();
  if (event.torn || event.handle != own->second.handle || event.session != me)
    page_.SetEvent(own->second.handle, me);
  return {};
}

Status Publication::Follow(const driver::CudaDriver& cuda, cuda::CUstream stream,
                           const LocalEvent& own) {
  // Who waits for what was published before looks at the event that is recorded now. What a dead
  // publisher left half-written counts as nothing.
  const PublicationPage::Event event = page_.event();
  if (!event.handle) return {};
  cuda::CUevent before = own.event;
  if (event.handle != own.handle) {
    // One of a context that was destroyed here: its work is over.
    if (event.session == Me() && !EventPool::Find(*event.handle)) return {};
    const Result<cuda::CUevent> opened = Open(cuda, *event.handle);
    const bool pending = opened.ok() && cuda.cuEventQuery(*opened) == cuda::CUDA_ERROR_NOT_READY;
    if (opened.ok() && !pending) return {};
    // The event of one who died is never complete.
    if (Stands(event.session) == Standing::kGone) return {};
    if (!opened.ok()) return opened.error();
    before = *opened;
  }
  const auto result = cuda.cuStreamWaitEvent(stream, before, 0);
  if (result != cuda::CUDA_SUCCESS) return cuda.MakeError("cuStreamWaitEvent", result);
  return {};
}

// ------------------------------------------------------------------------------------------------
// waiting

Publication::Standing Publication::Stands(std::uint64_t wanted) const {
  if (wanted == PublicationPage::kLeft) return Standing::kGone;
  Session& session = *companion_->session();
  wire::GetLeaseRequest request;
  request.lease_id = companion_->lease().lease_id;
  const auto reply =
      session.Call<wire::GetLeaseMethod>(request, {.deadline = steady_clock::now() + kQuestion});
  if (!reply.ok() || !reply->lease) return Standing::kUnknown;
  // Before anything is published it is the owner who is waited for.
  const bool stands = std::any_of(
      reply->lease->holders.begin(), reply->lease->holders.end(), [&](const wire::Holder& holder) {
        return wanted == PublicationPage::kNobody ? holder.owner : holder.session_id == wanted;
      });
  return stands ? Standing::kThere : Standing::kGone;
}

Error Publication::PublisherGone(std::uint64_t wanted) const {
  const PublicationPage::Publisher publisher = page_.publisher();
  std::string who = "its owner, who had published nothing,";
  if (publisher.session != PublicationPage::kNobody)
    who = "the process that published it (pid " + std::to_string(publisher.pid) + ")";
  return MakeError(Code::kAborted, Reason::kPeerGone,
                   subject_ + ": " + who + " has died or let go of it; " +
                       std::to_string(page_.sequence()) + " were published, waited for " +
                       std::to_string(wanted) + " and for its work on the GPU");
}

Error Publication::WaitOver(std::uint64_t wanted) const {
  return MakeError(Code::kDeadlineExceeded, Reason::kWaitOver,
                   subject_ + ": " + std::to_string(page_.sequence()) +
                       " were published within the timeout, waited for " + std::to_string(wanted) +
                       " and for its work on the GPU");
}

Status Publication::CheckPublisher(std::uint32_t bell, std::uint64_t wanted) {
  const std::uint32_t deaths = Bell::Deaths(bell);
  const std::uint64_t publisher = page_.publisher().session;
  if (publisher != PublicationPage::kLeft && deaths == deaths_) return {};
  switch (Stands(publisher)) {
    case Standing::kGone:
      return PublisherGone(wanted);
    case Standing::kThere:
      deaths_ = deaths;
      return {};
    case Standing::kUnknown:
      break;  // the daemon is away: ask again
  }
  return {};
}

Status Publication::AwaitSequence(std::uint64_t wanted, Time until) {
  for (;;) {
    const std::uint32_t seen = page_.bell().Read();
    if (page_.sequence() >= wanted) return {};
    GPULEASE_RETURN_IF_ERROR(companion_->Usable());
    GPULEASE_RETURN_IF_ERROR(CheckPublisher(seen, wanted));
    const Time now = steady_clock::now();
    if (now >= until) return WaitOver(wanted);
    page_.bell().Sleep(seen, std::min<steady_clock::duration>(until - now, kSlice));
    if (page_.bell().Read() == seen) companion_->session()->Refresh();
  }
}

Result<PublicationPage::Event> Publication::AwaitEvent(std::uint64_t wanted, Time until) {
  for (;;) {
    const std::uint32_t seen = page_.bell().Read();
    const PublicationPage::Event event = page_.event();
    if (!event.torn) return event;
    GPULEASE_RETURN_IF_ERROR(CheckPublisher(seen, wanted));
    const Time now = steady_clock::now();
    if (now >= until) return WaitOver(wanted);
    page_.bell().Sleep(seen, std::min<steady_clock::duration>(until - now, kLongestPause));
  }
}

Result<cuda::CUevent> Publication::Open(const driver::CudaDriver& cuda, const EventHandle& handle) {
  if (const std::optional<cuda::CUevent> local = EventPool::Find(handle)) return *local;
  if (opened_ && opened_->handle() == handle) return opened_->event();
  cuda::CUipcEventHandle bytes{};
  std::memcpy(&bytes, handle.data(), sizeof bytes);
  cuda::CUevent event = nullptr;
  const auto result = cuda.cuIpcOpenEventHandle(&event, bytes);
  if (result != cuda::CUDA_SUCCESS) return cuda.MakeError("cuIpcOpenEventHandle", result);
  opened_ = std::make_shared<Opened>(process_, handle, event);
  return event;
}

Result<cuda::CUevent> Publication::OpenToWait(const driver::CudaDriver& cuda,
                                              const PublicationPage::Event& event,
                                              std::uint64_t wanted) {
  auto opened = Open(cuda, *event.handle);
  if (opened.ok()) return opened;
  if (Stands(event.session) == Standing::kGone) return PublisherGone(wanted);
  return WithContext("wait for " + subject_, std::move(opened).error());
}

Result<std::uint64_t> Publication::Wait(std::uint64_t sequence, std::chrono::milliseconds timeout) {
  GPULEASE_RETURN_IF_ERROR(companion_->Usable());
  const Time until = EndOf(timeout);
  GPULEASE_RETURN_IF_ERROR(AwaitSequence(sequence, until));
  const std::uint64_t reached = page_.sequence();
  const auto published = AwaitEvent(sequence, until);
  if (!published.ok()) return published.error();
  if (!published->handle) return reached;
  auto process = Cuda();
  if (!process.ok()) return std::move(process).error();
  const driver::CudaDriver& cuda = (*process)->cuda();
  cuda::CUcontext context = nullptr;
  if (cuda.cuCtxGetCurrent(&context) != cuda::CUDA_SUCCESS || context == nullptr) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     subject_ +
                         " was published after a stream: to wait for it the thread needs a "
                         "current CUDA context");
  }
  std::shared_ptr<Opened> keep;  // while others may open the next one
  cuda::CUevent event = nullptr;
  {
    std::lock_guard lock(mutex_);
    process_ = *process;
    auto opened = OpenToWait(cuda, *published, sequence);
    if (!opened.ok()) return std::move(opened).error();
    event = *opened;
    keep = opened_;
  }
  std::chrono::microseconds pause = kFirstPause;
  std::uint32_t deaths = 0;  // that were looked into
  for (;;) {
    const std::uint32_t seen = page_.bell().Read();
    const auto result = cuda.cuEventQuery(event);
    if (result == cuda::CUDA_SUCCESS) return reached;
    if (result != cuda::CUDA_ERROR_NOT_READY) return cuda.MakeError("cuEventQuery", result);
    GPULEASE_RETURN_IF_ERROR(companion_->Usable());
    if (Bell::Deaths(seen) != deaths) {
      const Standing standing = Stands(published->session);
      if (standing == Standing::kGone) return PublisherGone(sequence);
      if (standing == Standing::kThere) deaths = Bell::Deaths(seen);
    }
    const Time now = steady_clock::now();
    if (now >= until) return WaitOver(sequence);
    page_.bell().Sleep(seen, std::min<steady_clock::duration>(until - now, pause));
    pause = std::min(pause * 2, kLongestPause);
  }
}

Result<std::uint64_t> Publication::WaitOn(std::uint64_t sequence, void* stream_pointer,
                                          std::chrono::milliseconds timeout) {
  GPULEASE_RETURN_IF_ERROR(companion_->Usable());
  const Time until = EndOf(timeout);
  GPULEASE_RETURN_IF_ERROR(AwaitSequence(sequence, until));
  const std::uint64_t reached = page_.sequence();
  const auto published = AwaitEvent(sequence, until);
  if (!published.ok()) return published.error();
  if (!published->handle) return reached;
  auto process = Cuda();
  if (!process.ok()) return std::move(process).error();
  const driver::CudaDriver& cuda = (*process)->cuda();
  auto* const stream = static_cast<cuda::CUstream>(stream_pointer);
  std::lock_guard lock(mutex_);
  process_ = *process;
  auto inside = Inside::Of(cuda, stream);
  if (!inside.ok()) return WithContext("wait for " + subject_, std::move(inside).error());
  auto event = OpenToWait(cuda, *published, sequence);
  if (!event.ok()) return std::move(event).error();
  auto result = cuda.cuEventQuery(*event);
  if (result == cuda::CUDA_SUCCESS) return reached;
  if (result != cuda::CUDA_ERROR_NOT_READY) return cuda.MakeError("cuEventQuery", result);
  if (Bell::Deaths(page_.bell().Read()) != 0 && Stands(published->session) == Standing::kGone)
    return PublisherGone(sequence);
  result = cuda.cuStreamWaitEvent(stream, *event, 0);
  if (result != cuda::CUDA_SUCCESS) return cuda.MakeError("cuStreamWaitEvent", result);
  return reached;
}

}  // namespace gpulease
