// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/session/session.h"

#include <errno.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "client/sdk/src/session/session_state.h"
#include "client/sdk/src/version.h"

namespace gpulease {

namespace {

using std::chrono::steady_clock;

// Between attempts to reach a daemon that restarts: soon back, and gentle while it is away.
constexpr std::chrono::milliseconds kFirstPause{5};
constexpr std::chrono::milliseconds kLongestPause{200};
// A call is made at most this often when its connection is lost under it.
constexpr int kMaxAttempts = 4;
// Before each of them: while a service manager takes the sockets from a daemon that fell, or gives
// them to the next, each connection ends as soon as it is made.
constexpr std::chrono::milliseconds kLostPause[kMaxAttempts] = {
    std::chrono::milliseconds(0), std::chrono::milliseconds(0), std::chrono::milliseconds(50),
    std::chrono::milliseconds(250)};
// Between attempts while the daemon ends its last calls.
constexpr std::chrono::milliseconds kStoppingPause{10};
// How long a destructor waits for a daemon that is there.
constexpr std::chrono::seconds kQuietPatience{2};
// How long one who waits for something else looks for a daemon.
constexpr std::chrono::milliseconds kRefreshPatience{200};

std::string Hex(const std::uint8_t (&bytes)[16]) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string RandomPrefix() {
  std::uint8_t bytes[16] = {};
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
    const std::uint64_t fallback[2] = {
        static_cast<std::uint64_t>(getpid()),
        static_cast<std::uint64_t>(steady_clock::now().time_since_epoch().count())};
    std::memcpy(bytes, fallback, sizeof bytes);
  }
  return Hex(bytes).substr(0, 16);
}

Error Gone(const std::string& subject) {
  return MakeError(Code::kFailedPrecondition, Reason::kSessionEnded,
                   "the daemon was restarted, or ended the session; " + subject +
                       " of the former session is gone: allocate or open it anew");
}

}  // namespace

inline namespace abi_v1 {

Session::Session(const ClientOptions& options, RuntimePaths paths)
    : options_(options),
      paths_(std::move(paths)),
      request_prefix_(RandomPrefix()),
      state_(std::make_unique<State>()),
      events_(std::make_unique<Events>()) {}

Session::~Session() {
  if (!inherited()) return;
  // Another thread of the parent may have been inside when it forked: nothing here can be touched.
  (void)state_.release();
  (void)events_.release();
}

Result<std::shared_ptr<Session>> Session::Connect(const ClientOptions& options) {
  Result<RuntimePaths> paths = ResolveRuntimePaths(options.runtime_dir);
  if (!paths.ok()) return std::move(paths).error();
  ClientOptions completed = options;
  if (completed.program.empty()) completed.program = program_invocation_short_name;
  std::shared_ptr<Session> session(new Session(completed, std::move(*paths)));
  Result<Link> link = session->Acquire(steady_clock::now() + options.connect_timeout);
  if (!link.ok()) return std::move(link).error();
  return session;
}

Status Session::ok() const {
  if (!inherited()) return {};
  return MakeError(Code::kFailedPrecondition, Reason::kSessionEnded,
                   "this object was created before fork and is inert in this process: make a "
                   "Client here");
}

Deadline Session::CallDeadline() const { return steady_clock::now() + options_.call_timeout; }

std::string Session::NextRequestId() {
  return request_prefix_ + "-" + std::to_string(++last_request_);
}

Link Session::link() {
  std::lock_guard lock(state_->mutex);
  return state_->link;
}

Result<Link> Session::Acquire(Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  const Link link = state_->link;
  const bool postponed = !state_->postponed.empty();
  lock.unlock();
  if (!link.handles || link.handles->closed() || !link.calls || !link.calls->usable())
    return Reconnect(deadline);
  if (postponed) SendPostponed(link);
  return link;
}

Result<Link> Session::Reconnect(Deadline deadline) {
  // One thread reconnects, the others wait for what comes of it.
  std::lock_guard connecting(state_->connecting);
  std::chrono::milliseconds pause = kFirstPause;
  for (;;) {
    Status status = ConnectOnce(deadline);
    if (status.ok()) {
      Link link = this->link();
      SendPostponed(link);
      return link;
    }
    const auto now = steady_clock::now();
    if (status.error().code != Code::kUnavailable || now + pause >= deadline) {
      return std::move(status).error();
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

Status Session::ConnectOnce(Deadline deadline) {
  Link link = this->link();
  if (link.handles && !link.handles->closed()) link.handles->ReadAvailable();
  const bool new_handles = !link.handles || link.handles->closed();
  if (!new_handles && link.calls && link.calls->usable()) return {};
  if (new_handles) {
    auto handles = HandleSocket::Connect({.path = paths_.handle_socket,
                                          .program = options_.program,
                                          .resume_session_id = link.session_id,
                                          .deadline = deadline});
    if (!handles.ok()) return std::move(handles).error();
    const handle::Welcome& welcome = (*handles)->welcome();
    if (!(*handles)->resumed() || welcome.session_id != link.session_id) {
      link.epoch = ++epoch_;
      std::lock_guard lock(state_->mutex);
      state_->postponed.clear();
    } else if (link.handles) {
      (*handles)->InheritFrom(*link.handles);
    }
    link.session_id = welcome.session_id;
    link.instance = Hex(welcome.instance);
    link.handles = std::move(*handles);
    link.calls = nullptr;
  }
  // Kept even when the second connection fails: the session is there.
  {
    std::lock_guard lock(state_->mutex);
    state_->link = link;
  }
  if (!link.calls || !link.calls->usable()) {
    auto calls = Channel::Connect(paths_.grpc_socket);
    if (!calls.ok()) return std::move(calls).error();
    std::lock_guard lock(state_->mutex);
    state_->link.calls = std::move(*calls);
  }
  return {};
}

void Session::Abandon(const Link& link) { link.handles->Close(); }

Result<std::string> Session::Perform(std::string_view path, const CallTerms& terms,
                                     const Encode& encode) {
  GPULEASE_RETURN_IF_ERROR(ok());
  bool renewed = false;
  bool repeated = false;  // what the daemon may have seen before
  Deadline stopping_until = Deadline::max();
  for (int attempt = 1;; ++attempt) {
    std::this_thread::sleep_for(kLostPause[attempt - 1]);
    Result<Link> link =
        Acquire(std::min(terms.deadline, steady_clock::now() + options_.connect_timeout));
    if (!link.ok()) return std::move(link).error();
    if (terms.epoch != 0 && link->epoch != terms.epoch) return Gone(terms.subject);
    FramedRequest request;
    encode(request.bytes, *link);
    Reply reply = link->calls->Call(path, std::move(request), terms.deadline,
                                    terms.hand_over ? link->handles.get() : nullptr);
    // Another daemon than the one that knows the session: what it says of it means nothing.
    const bool other_daemon = !reply.instance.empty() && reply.instance != link->instance;
    if (other_daemon) Abandon(*link);
    if (reply.status.ok()) return std::move(reply.message);
    Error error = std::move(reply.status).error();
    if (reply.lost) {
      if (attempt < kMaxAttempts && (terms.repeatable || reply.unprocessed) &&
          steady_clock::now() < terms.deadline) {
        repeated = repeated || !reply.unprocessed;
        continue;
      }
      return error;
    }
    if (repeated && terms.ends && error.code == Code::kNotFound) return std::string();
    // It is about to stop, or gRPC cut the call off before the daemon answered it (every answer of
    // the daemon itself names its instance). Its next life answers.
    const bool stopping = error.reason == Reason::kStopping ||
                          (error.code == Code::kCancelled && reply.instance.empty());
    if (stopping && terms.repeatable) {
      const auto now = steady_clock::now();
      stopping_until = std::min({stopping_until, now + options_.connect_timeout, terms.deadline});
      if (now + kStoppingPause < stopping_until) {
        std::this_thread::sleep_for(kStoppingPause);
        repeated = true;
        --attempt;
        continue;
      }
    }
    if (error.code == Code::kUnimplemented) {
      return MakeError(error.code, Reason::kUnsupported,
                       "the daemon (version " +
                           std::string(link->handles->welcome().daemon_version) +
                           ") does not know " + std::string(path) + "; libgpulease " + kVersion +
                           " needs it: update gpuleased");
    }
    const bool over = error.reason == Reason::kSessionEnded ||
                      error.code == Code::kUnauthenticated || other_daemon;
    if (!over) return error;
    if (!other_daemon) Abandon(*link);
    if (std::exchange(renewed, true)) return error;
  }
}

void Session::EndQuietly(std::uint64_t lease_id, bool release, std::uint64_t epoch) {
  if (inherited()) return;
  Link link = this->link();
  if (link.epoch != epoch) return;
  link.handles->LetGo(lease_id);
  if (!link.handles->closed() && link.calls && link.calls->usable() &&
      state_->End(link, lease_id, release, steady_clock::now() + kQuietPatience)) {
    return;
  }
  // The connection was lost, perhaps long ago with a daemon that has a successor by now: one
  // attempt to reach it, which waits for nobody.
  if (std::unique_lock connecting(state_->connecting, std::try_to_lock);
      connecting.owns_lock() && ConnectOnce(steady_clock::now() + kQuietPatience).ok()) {
    link = this->link();
    if (link.epoch == epoch &&
        state_->End(link, lease_id, release, steady_clock::now() + kQuietPatience)) {
      return;
    }
  }
  std::lock_guard lock(state_->mutex);
  if (state_->link.epoch == epoch) state_->postponed.push_back({lease_id, release});
}

void Session::Refresh() {
  if (inherited()) return;
  const Link link = this->link();
  if (!link.handles) return;
  if (!link.handles->closed()) link.handles->ReadAvailable();
  if (!link.handles->closed()) return;
  if (std::unique_lock connecting(state_->connecting, std::try_to_lock); connecting.owns_lock())
    static_cast<void>(ConnectOnce(steady_clock::now() + kRefreshPatience).ok());
}

void Session::SendPostponed(const Link& link) {
  std::vector<State::Ending> endings;
  {
    std::lock_guard lock(state_->mutex);
    endings.swap(state_->postponed);
  }
  for (const State::Ending& ending : endings) {
    (void)state_->End(link, ending.lease_id, ending.release, steady_clock::now() + kQuietPatience);
  }
}

}  // namespace abi_v1
}  // namespace gpulease
