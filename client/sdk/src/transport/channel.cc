// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/transport/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "client/sdk/src/process/fork_guard.h"
#include "client/sdk/src/transport/http2_session.h"
#include "client/sdk/src/transport/unix_socket.h"

namespace gpulease {
namespace {

using std::chrono::steady_clock;

// An allocation of a small lease takes about 150 µs on a large machine.
constexpr std::chrono::microseconds kLookBeforeSleeping{150};
// A blocking receive wakes up this often to look at its deadline. Calls with less time left, or
// with a second descriptor to watch, poll instead, which costs one more system call.
constexpr std::chrono::milliseconds kReceiveSlice{100};

}  // namespace

struct Channel::Impl {
  LocalFd socket;
  std::uint64_t generation = ForkGeneration();
  std::atomic<bool> dead{false};

  std::mutex mutex;
  std::condition_variable turn;  // an exchange finished, or nobody reads any more
  // under mutex
  Http2Session session;
  std::string out;  // not yet taken by the socket
  bool reading = false;
  int waiting = 0;

  void Die(const std::string& why) {
    dead = true;
    session.FinishAll(session.why().empty() ? why : session.why());
  }

  // Writes what there is, as far as the socket takes it. One system call for a whole request.
  void Flush() {
    session.Collect(out);
    std::size_t sent = 0;
    while (sent < out.size() && !dead) {
      const ssize_t n =
          send(socket.get(), out.data() + sent, out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n >= 0) {
        sent += static_cast<std::size_t>(n);
      } else if (errno == EAGAIN) {
        break;
      } else if (errno != EINTR) {
        // What the daemon said before it closed is still to be read; reading finds the end.
        if (errno != EPIPE && errno != ECONNRESET) Die(std::strerror(errno));
        out.clear();
        return;
      }
    }
    out.erase(0, sent);
  }

  // Takes what was read: `n` as recv() gives it, with its errno.
  void Took(const char* buffer, ssize_t n, int error_number) {
    if (n > 0) {
      if (!session.Receive(buffer, static_cast<std::size_t>(n))) {
        Flush();
        Die(session.why());
        return;
      }
      Flush();
      if (session.over()) Die("the daemon's reply broke HTTP/2, or its headers were too long");
    } else if (n == 0) {
      Die("it closed the connection");
    } else if (error_number != EAGAIN && error_number != EINTR) {
      Die(std::strerror(error_number));
    }
  }

  // Polls without sleeping, for as long as an answer usually takes: to be woken costs as much
  // again. Not where the daemon may need this very processor.
  static bool FindsReady(pollfd* polled, nfds_t count) {
    static const bool worth_it = std::thread::hardware_concurrency() > 2;
    if (!worth_it) return false;
    const auto until = steady_clock::now() + kLookBeforeSleeping;
    do {
      if (poll(polled, count, 0) > 0) return true;
    } while (steady_clock::now() < until);
    return false;
  }

  // Waits for bytes and receives once. Without the lock.
  ssize_t Read(char* buffer, std::size_t size, Deadline deadline, SideSource* side,
               bool want_write) {
    const auto left = deadline - steady_clock::now();
    const int side_fd = side ? side->descriptor() : -1;
    pollfd polled[2] = {{socket.get(), POLLIN, 0}, {side_fd, POLLIN, 0}};
    if (want_write) polled[0].events |= POLLOUT;
    const nfds_t count = side_fd < 0 ? 1 : 2;
    const auto wait = std::clamp<std::chrono::nanoseconds>(left, std::chrono::nanoseconds{0},
                                                           std::chrono::seconds{1});
    const timespec timeout{wait.count() / 1'000'000'000, wait.count() % 1'000'000'000};
    if (!FindsReady(polled, count)) {
      if (side_fd < 0 && !want_write && left > kReceiveSlice) {
        return recv(socket.get(), buffer, size, 0);
      }
      if (ppoll(polled, count, &timeout, nullptr) <= 0) {
        errno = EAGAIN;
        return -1;
      }
    }
    if (polled[1].revents != 0) side->ReadAvailable();
    if ((polled[0].revents & (POLLIN | POLLHUP | POLLERR)) == 0) {
      errno = EAGAIN;
      return -1;
    }
    return recv(socket.get(), buffer, size, MSG_DONTWAIT);
  }

  // Until `done`, the channel's death or the deadline.
  template <typename Done>
  void Wait(std::unique_lock<std::mutex>& lock, Deadline deadline, SideSource* side, Done done) {
    while (!done() && !dead) {
      if (steady_clock::now() >= deadline) return;
      if (reading) {
        ++waiting;
        turn.wait_until(lock, std::min(deadline, steady_clock::now() + std::chrono::hours(1)));
        --waiting;
        continue;
      }
      reading = true;
      const bool want_write = !out.empty();
      lock.unlock();
      char buffer[16 << 10];
      const ssize_t n = Read(buffer, sizeof buffer, deadline, side, want_write);
      const int error_number = errno;
      lock.lock();
      reading = false;
      if (want_write && n < 0) Flush();
      Took(buffer, n, error_number);
      if (waiting > 0) turn.notify_all();
    }
  }
};

Channel::Channel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Channel::~Channel() {
  // Inherited over fork: another thread may have been inside of it. Its descriptor is closed.
  if (impl_->generation != ForkGeneration()) (void)impl_.release();
}

Result<std::shared_ptr<Channel>> Channel::Connect(const std::string& path) {
  Result<LocalFd> socket = ConnectUnix(path, SOCK_STREAM);
  if (!socket.ok()) return std::move(socket).error();
  const timeval slice{0, std::chrono::microseconds(kReceiveSlice).count()};
  setsockopt(socket->get(), SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice);
  auto impl = std::make_unique<Impl>();
  impl->socket = std::move(*socket);
  return std::shared_ptr<Channel>(new Channel(std::move(impl)));
}

Reply Channel::Call(std::string_view path, FramedRequest request, Deadline deadline,
                    SideSource* side) {
  Reply reply;
  Exchange exchange;
  exchange.request = std::move(request.bytes);
  const std::uint32_t length =
      __builtin_bswap32(static_cast<std::uint32_t>(exchange.request.size() - 5));
  std::memcpy(exchange.request.data() + 1, &length, sizeof length);

  std::unique_lock lock(impl_->mutex);
  if (impl_->dead || !impl_->session.accepts_calls() ||
      !impl_->session.Start(exchange, path, deadline - steady_clock::now())) {
    reply.status = MakeError(Code::kUnavailable, Reason::kUnspecified,
                             "the connection to the daemon is over: " + impl_->session.why());
    reply.lost = reply.unprocessed = true;
    return reply;
  }
  impl_->Flush();
  impl_->Wait(lock, deadline, side, [&] { return exchange.finished; });
  if (!exchange.finished) {
    impl_->session.Abandon(exchange);
    impl_->Flush();
    reply.status = MakeError(Code::kDeadlineExceeded, Reason::kUnspecified,
                             "no answer within the time given for " + std::string(path));
    return reply;
  }
  lock.unlock();
  reply.status = exchange.Outcome();
  reply.lost = exchange.lost;
  reply.unprocessed = exchange.refused;
  reply.instance = std::move(exchange.instance);
  if (reply.status.ok()) {
    exchange.buffer.erase(0, 5);
    reply.message = std::move(exchange.buffer);
  }
  return reply;
}

struct Channel::Stream::State {
  Exchange exchange;
  std::uint64_t generation = ForkGeneration();
};

Channel::Stream::Stream(std::shared_ptr<Channel> channel, std::unique_ptr<State> state)
    : channel_(std::move(channel)), state_(std::move(state)) {}

Channel::Stream::~Stream() {
  if (state_->generation != ForkGeneration()) {
    (void)state_.release();
    return;
  }
  std::lock_guard lock(channel_->impl_->mutex);
  if (state_->exchange.finished) return;
  channel_->impl_->session.Abandon(state_->exchange);
  channel_->impl_->Flush();
}

Result<std::unique_ptr<Channel::Stream>> Channel::Open(const std::shared_ptr<Channel>& channel,
                                                       std::string_view path, FramedRequest request,
                                                       int notify) {
  auto state = std::make_unique<Stream::State>();
  Exchange& exchange = state->exchange;
  exchange.request = std::move(request.bytes);
  exchange.stream = true;
  exchange.notify = notify;
  const std::uint32_t length =
      __builtin_bswap32(static_cast<std::uint32_t>(exchange.request.size() - 5));
  std::memcpy(exchange.request.data() + 1, &length, sizeof length);
  Impl& impl = *channel->impl_;
  std::lock_guard lock(impl.mutex);
  if (impl.dead || !impl.session.accepts_calls() ||
      !impl.session.Start(exchange, path, std::chrono::nanoseconds::max())) {
    return MakeError(Code::kUnavailable, Reason::kUnspecified,
                     "the connection to the daemon is over: " + impl.session.why());
  }
  impl.Flush();
  return std::unique_ptr<Stream>(new Stream(channel, std::move(state)));
}

Result<std::optional<std::string>> Channel::Stream::Next(Deadline deadline, SideSource* side) {
  Impl& impl = *channel_->impl_;
  Exchange& exchange = state_->exchange;
  auto done = [&] { return exchange.finished || !exchange.messages.empty(); };
  std::unique_lock lock(impl.mutex);
  impl.Wait(lock, deadline, side, done);
  // Once without waiting, for a deadline that is over already.
  if (!done() && !impl.reading && !impl.dead) {
    char buffer[16 << 10];
    const ssize_t n = recv(impl.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    impl.Took(buffer, n, errno);
    if (impl.waiting > 0) impl.turn.notify_all();
  }
  if (!exchange.messages.empty()) {
    std::optional<std::string> message = std::move(exchange.messages.front());
    exchange.messages.pop_front();
    if (!exchange.messages.empty() || exchange.finished) SignalEvent(exchange.notify);
    return message;
  }
  if (!exchange.finished) return std::optional<std::string>();
  Status status = exchange.Outcome();
  if (!status.ok()) return std::move(status).error();
  return MakeError(Code::kUnavailable, Reason::kUnspecified, "the daemon ended the stream");
}

bool Channel::Stream::TakeOverflow() {
  std::lock_guard lock(channel_->impl_->mutex);
  return std::exchange(state_->exchange.overflow, false);
}

bool Channel::usable() {
  Impl& impl = *impl_;
  if (impl.dead) return false;
  std::unique_lock lock(impl.mutex);
  return !impl.dead && impl.session.accepts_calls();
}

int Channel::descriptor() const { return impl_->socket.get(); }

}  // namespace gpulease
