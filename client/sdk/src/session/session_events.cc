// SPDX-License-Identifier: Apache-2.0
//
// The session's events, and the calls that its destructors make.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/sdk/src/session/session_state.h"

namespace gpulease {
inline namespace abi_v1 {

using std::chrono::steady_clock;

bool Session::State::End(const Link& over, std::uint64_t lease_id, bool release,
                         Deadline deadline) {
  FramedRequest request;
  Reply reply;
  if (release) {
    wire::ReleaseRequest message;
    message.session_id = over.session_id;
    message.lease_id = lease_id;
    message.Append(request.bytes);
    reply = over.calls->Call(wire::ReleaseMethod::kPath, std::move(request), deadline, nullptr);
  } else {
    wire::CloseRequest message;
    message.session_id = over.session_id;
    message.lease_id = lease_id;
    message.Append(request.bytes);
    reply = over.calls->Call(wire::CloseMethod::kPath, std::move(request), deadline, nullptr);
  }
  return !reply.lost;
}

Status Session::Subscribe(Deadline deadline) {
  Events& events = *events_;
  if (!events.poller) {
    const ForkHold hold;
    events.notify = LocalFd(UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), hold);
    events.poller = LocalFd(UniqueFd(epoll_create1(EPOLL_CLOEXEC)), hold);
    if (!events.notify || !events.poller) {
      const int error_number = errno;
      return ErrnoError("descriptors for events", error_number);
    }
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(events.poller.get(), EPOLL_CTL_ADD, events.notify.get(), &event);
  }
  if (events.stream) return {};
  Result<Link> link = Acquire(deadline);
  if (!link.ok()) return std::move(link).error();
  FramedRequest request;
  wire::WatchRequest message;
  message.session_id = link->session_id;
  message.Append(request.bytes);
  auto stream =
      Channel::Open(link->calls, wire::WatchMethod::kPath, std::move(request), events.notify.get());
  if (!stream.ok()) return std::move(stream).error();
  if (events.channel != link->calls) {
    if (events.channel) {
      epoll_ctl(events.poller.get(), EPOLL_CTL_DEL, events.channel->descriptor(), nullptr);
    }
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(events.poller.get(), EPOLL_CTL_ADD, link->calls->descriptor(), &event);
    events.channel = link->calls;
  }
  events.stream = std::move(*stream);
  events.lost = std::exchange(events.began, true);
  return {};
}

Result<int> Session::EventDescriptor() {
  GPULEASE_RETURN_IF_ERROR(ok());
  std::lock_guard lock(events_->mutex);
  GPULEASE_RETURN_IF_ERROR(Subscribe(steady_clock::now() + options_.connect_timeout));
  return events_->poller.get();
}

Result<std::optional<wire::Event>> Session::NextEvent(std::chrono::milliseconds timeout) {
  GPULEASE_RETURN_IF_ERROR(ok());
  const Deadline deadline = steady_clock::now() + timeout;
  std::lock_guard lock(events_->mutex);
  Events& events = *events_;
  // Twice: a stream that ended is begun anew, on a new connection.
  for (int attempt = 1;; ++attempt) {
    GPULEASE_RETURN_IF_ERROR(
        Subscribe(steady_clock::now() + std::min(timeout, options_.connect_timeout)));
    if (events.lost || events.stream->TakeOverflow()) {
      events.lost = false;
      wire::Event event;
      event.type = wire::Event::Type::kLostEvents;
      event.message = "events may be missing: read the state anew";
      return std::optional<wire::Event>(std::move(event));
    }
    std::uint64_t count;
    [[maybe_unused]] const ssize_t n = read(events.notify.get(), &count, sizeof count);
    Link current = link();
    auto message = events.stream->Next(deadline, current.handles.get());
    if (message.ok()) {
      if (!message->has_value()) return std::optional<wire::Event>();
      Result<wire::Event> event = wire::Decode<wire::Event>(**message);
      if (!event.ok()) return std::move(event).error();
      return std::optional<wire::Event>(std::move(*event));
    }
    events.stream.reset();
    const Error& error = message.error();
    if (error.reason == Reason::kSessionEnded || error.code == Code::kUnauthenticated) {
      Abandon(current);
    } else if (error.code != Code::kUnavailable) {
      return error;
    }
    if (attempt == 2) return error;
  }
}

}  // namespace abi_v1
}  // namespace gpulease
