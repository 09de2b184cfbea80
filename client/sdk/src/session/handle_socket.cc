// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/session/handle_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/descriptor_channel.h"
#include "client/sdk/src/transport/unix_socket.h"
#include "client/sdk/src/version.h"

namespace gpulease {
namespace {

using std::chrono::steady_clock;

// Someone else may read what this thread waits for: look again this often.
constexpr std::chrono::milliseconds kLookAgain{20};

// Whether it becomes readable by the deadline.
bool Readable(int fd, Deadline deadline) {
  for (;;) {
    const auto left = std::max<std::chrono::nanoseconds>(deadline - steady_clock::now(),
                                                         std::chrono::nanoseconds{0});
    const timespec timeout{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    pollfd polled{fd, POLLIN, 0};
    const int n = ppoll(&polled, 1, &timeout, nullptr);
    if (n > 0) return true;
    if (n == 0) return false;
    if (errno != EINTR) return false;
  }
}

Error OtherVersion(unsigned theirs) {
  return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                   "the daemon speaks version " + std::to_string(theirs) +
                       " of the handle protocol, this libgpulease (" + kVersion + ") version " +
                       std::to_string(handle::kVersion) + ": update the older of the two");
}

Result<handle::Welcome> ReadWelcome(int socket, Deadline deadline) {
  std::array<std::byte, handle::kMaxMessageBytes> buffer;
  if (!Readable(socket, deadline)) {
    return MakeError(Code::kUnavailable, Reason::kUnspecified,
                     "the daemon accepted the connection and does not answer: is it stuck? "
                     "journalctl -u gpuleased");
  }
  Result<ReceivedMessage> message = ReceiveMessage(socket, buffer, true);
  if (!message.ok() || message->size == 0) {
    return MakeError(Code::kUnavailable, Reason::kUnspecified,
                     "the daemon closed the connection instead of opening a session");
  }
  const std::span<const std::byte> bytes(buffer.data(), message->size);
  const std::optional<handle::Kind> kind = handle::KindOf(bytes);
  if (kind == handle::Kind::kWelcome) {
    if (auto welcome = handle::Parse<handle::Welcome>(bytes)) return *welcome;
  } else if (kind == handle::Kind::kRefused) {
    if (auto refused = handle::Parse<handle::Refused>(bytes)) {
      return MakeError(static_cast<Code>(refused->code), static_cast<Reason>(refused->reason),
                       "the daemon refuses the session: " + TextOf(refused->message));
    }
  }
  handle::Header header{.kind = handle::Kind::kWelcome};
  if (kind) std::memcpy(&header, bytes.data(), sizeof header);
  if (kind && header.version != handle::kVersion) return OtherVersion(header.version);
  return MakeError(Code::kInternal, Reason::kUnspecified,
                   "what answers on the handle socket is no gpuleased");
}

}  // namespace

Result<std::shared_ptr<HandleSocket>> HandleSocket::Connect(const Options& options) {
  Result<LocalFd> socket = ConnectUnix(options.path, SOCK_SEQPACKET);
  if (!socket.ok()) return std::move(socket).error();
  handle::Hello hello;
  hello.resume_session_id = options.resume_session_id;
  CopyText(hello.client_version, kVersion);
  CopyText(hello.program, options.program);
  // With our pidfd, unless the kernel is new enough to tell the daemon of it (SO_PEERPIDFD).
  int rights = 0;
  socklen_t length = sizeof rights;
  const bool told =
      getsockopt(socket->get(), SOL_SOCKET, handle::kPassRights, &rights, &length) == 0;
  const UniqueFd self(told ? -1 : static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const int descriptors[] = {self.get()};
  Status sent = SendMessage(socket->get(), handle::BytesOf(hello),
                            self ? std::span<const int>(descriptors) : std::span<const int>());
  if (!sent.ok()) return std::move(sent).error();
  Result<handle::Welcome> welcome = ReadWelcome(socket->get(), options.deadline);
  if (!welcome.ok()) return std::move(welcome).error();
  std::shared_ptr<HandleSocket> connected(new HandleSocket);
  connected->socket_ = std::move(*socket);
  connected->welcome_ = *welcome;
  return connected;
}

void HandleSocket::Expect(std::uint64_t tag) {
  std::lock_guard lock(mutex_);
  waiting_.try_emplace(tag);
}

std::vector<std::uint64_t> HandleSocket::Forget(std::uint64_t tag) {
  std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> taken;
  auto at = waiting_.find(tag);
  if (at == waiting_.end()) return taken;
  for (const HandedLease& lease : at->second.leases) taken.push_back(lease.lease_id);
  waiting_.erase(at);
  return taken;
}

Result<std::vector<HandedLease>> HandleSocket::Collect(std::uint64_t tag,
                                                       std::span<const std::uint64_t> leases,
                                                       Deadline deadline) {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      Waiting& waiting = waiting_[tag];
      if (waiting.error) return *waiting.error;
      std::vector<HandedLease*> found;
      for (std::uint64_t id : leases) {
        for (HandedLease& lease : waiting.leases) {
          if (lease.lease_id == id && lease.complete()) found.push_back(&lease);
        }
      }
      if (found.size() == leases.size()) {
        std::vector<HandedLease> collected;
        for (HandedLease* lease : found) {
          held_.insert(lease->lease_id);
          collected.push_back(std::move(*lease));
        }
        waiting_.erase(tag);
        return collected;
      }
    }
    if (closed_ || steady_clock::now() >= deadline) {
      return MakeError(Code::kUnavailable, Reason::kHandOver,
                       closed_ ? "the connection to the daemon was lost before the memory's "
                                 "descriptors arrived: retry"
                               : "the memory's descriptors did not arrive in time: retry");
    }
    (void)Readable(socket_.get(), std::min(deadline, steady_clock::now() + kLookAgain));
    ReadAvailable();
  }
}

bool HandleSocket::Holds(std::uint64_t lease_id) {
  std::lock_guard lock(mutex_);
  return held_.contains(lease_id);
}

void HandleSocket::LetGo(std::uint64_t lease_id) {
  std::lock_guard lock(mutex_);
  held_.erase(lease_id);
}

void HandleSocket::InheritFrom(HandleSocket& former) {
  std::scoped_lock lock(mutex_, former.mutex_);
  held_ = former.held_;
  for (const auto& [tag, waiting] : former.waiting_) waiting_.try_emplace(tag);
}

void HandleSocket::Close() {
  closed_ = true;
  // Not close(): another thread may be about to use the number.
  if (socket_) shutdown(socket_.get(), SHUT_RDWR);
}

void HandleSocket::ReadAvailable() {
  std::lock_guard lock(mutex_);
  std::array<std::byte, handle::kMaxMessageBytes> buffer;
  while (!closed_) {
    buffer.fill(std::byte{0});
    const ForkHold hold;
    Result<ReceivedMessage> message = ReceiveMessage(socket_.get(), buffer, true);
    if (!message.ok() && message.error().code == Code::kUnavailable) return;
    if (message.ok() && message->size == 0) {
      closed_ = true;
      return;
    }
    // When descriptors were cut off, the message itself is there all the same.
    const std::size_t size = message.ok() ? message->size : sizeof(handle::Push);
    const std::span<const std::byte> bytes(buffer.data(), size);
    std::optional<handle::Push> push;
    if (handle::KindOf(bytes) == handle::Kind::kPush) push = handle::Parse<handle::Push>(bytes);
    if (!push) {
      closed_ = true;
      return;
    }
    if (message.ok()) {
      Take(*push, std::move(message->descriptors), hold);
      continue;
    }
    Answer(*push, false);
    if (auto at = waiting_.find(push->tag); at != waiting_.end() && !at->second.error) {
      at->second.error = WithContext("lease " + std::to_string(push->lease_id) + " was given back",
                                     std::move(message).error());
    }
  }
}

void HandleSocket::Take(const handle::Push& push, std::vector<UniqueFd> descriptors,
                        const ForkHold& hold) {
  auto at = waiting_.find(push.tag);
  if (at == waiting_.end()) {
    Answer(push, held_.contains(push.lease_id));
    return;
  }
  // After one push of the tag failed, the others are not wanted either.
  if (at->second.error) {
    Answer(push, false);
    return;
  }
  std::vector<HandedLease>& leases = at->second.leases;
  auto lease = std::find_if(leases.begin(), leases.end(), [&](const HandedLease& known) {
    return known.lease_id == push.lease_id;
  });
  // Room is made for what came alone, whatever more is said to come.
  const std::size_t known = lease == leases.end() ? 0 : lease->descriptors.size();
  const std::uint64_t end = std::uint64_t{push.first} + push.count;
  if (descriptors.size() != push.count || push.count == 0 || push.first > known ||
      end > push.total || (known > 0 && lease->total != push.total)) {
    at->second.error = MakeError(Code::kInternal, Reason::kHandOver,
                                 "the daemon handed over other descriptors than it says");
    Answer(push, false);
    return;
  }
  if (lease == leases.end()) lease = leases.emplace(leases.end());
  lease->lease_id = push.lease_id;
  lease->generation = push.generation;
  lease->read_only = push.read_only != 0;
  lease->total = push.total;
  for (std::uint32_t i = 0; i < push.count; ++i) {
    // A push that was repeated: what is there is the same memory.
    if (push.first + i >= known) lease->descriptors.emplace_back(std::move(descriptors[i]), hold);
  }
  Answer(push, true);
}

void HandleSocket::Answer(const handle::Push& push, bool ok) {
  handle::Taken taken;
  taken.tag = push.tag;
  taken.lease_id = push.lease_id;
  taken.count = push.count;
  taken.ok = ok ? 1 : 0;
  // A daemon that does not read it has gone, which the next receive finds out.
  (void)SendMessage(socket_.get(), handle::BytesOf(taken), {}).ok();
}

}  // namespace gpulease
