// SPDX-License-Identifier: Apache-2.0
#include "daemon/state/keeper_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/descriptor_channel.h"
#include "daemon/state/keeper_socket.h"
#include "daemon/state/other_side.h"

namespace gpulease::state {
namespace {

using keeper::Command;
using keeper::DescriptorLimit;
using keeper::Kind;
using keeper::WaitFor;

// Between two parts of what it hands over.
constexpr Duration kPartBound = std::chrono::seconds(5);
// The keeper reads at hundreds of thousands of messages a second.
constexpr Duration kSendBound = std::chrono::seconds(1);
constexpr Duration kAnswerBound = std::chrono::seconds(5);

Error Unavailable(std::string message) {
  return MakeError(Code::kUnavailable, Reason::kUnspecified, std::move(message));
}

Error Precondition(std::string message) {
  return MakeError(Code::kFailedPrecondition, Reason::kUnspecified, std::move(message));
}

Result<UniqueFd> ConnectTo(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), std::min(path.size() + 1, sizeof address.sun_path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return ErrnoError("socket", errno);
  const int buffer = 4 << 20;
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    Error error = ErrnoError("connect to " + path, errno);
    if (errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN)
      error.code = Code::kUnavailable;
    return error;
  }
  return socket;
}

}  // namespace

Result<keeper::Welcome> KeeperLink::Connect(const std::string& path, const std::string& version,
                                            Duration patience) {
  Drop();
  Result<UniqueFd> socket = ConnectTo(path);
  if (!socket.ok()) return std::move(socket).error();
  if (Status trusted = keeper::CheckOtherSide(socket->get()); !trusted.ok())
    return WithContext("what listens on " + path + " is not the keeper",
                       std::move(trusted).error());
  keeper::Hello hello;
  CopyText(hello.daemon_version, version);
  GPULEASE_RETURN_IF_ERROR(SendMessage(socket->get(), BytesOf(hello), {}));
  if (!WaitFor(socket->get(), POLLIN, After(BootClock::now(), patience)))
    return Unavailable("the keeper does not answer");
  std::array<std::byte, keeper::kMaxMessageBytes> buffer;
  Result<ReceivedMessage> message = ReceiveMessage(socket->get(), buffer, /*dont_wait=*/true);
  // Who closes with our Hello unread has it reported first, and what he said next.
  if (message.ok() && message->size == 0)
    message = ReceiveMessage(socket->get(), buffer, /*dont_wait=*/true);
  if (!message.ok() || message->size == 0) return Unavailable("the keeper closed the connection");
  const std::span<const std::byte> bytes = std::span(buffer).first(message->size);
  if (const auto refused = ReadPacket<keeper::Refused>(bytes);
      refused && keeper::KindOf(bytes) == Kind::kRefused) {
    return MakeError(refused->for_good != 0 ? Code::kPermissionDenied : Code::kAborted,
                     Reason::kUnspecified, TextOf(refused->message));
  }
  const auto welcome = ReadPacket<keeper::Welcome>(bytes);
  if (!welcome || keeper::KindOf(bytes) != Kind::kWelcome) {
    return Precondition("the keeper speaks another version of the protocol than " +
                        std::to_string(keeper::kVersion) +
                        ": have the installed one take over (systemctl reload gpulease-keeper)");
  }
  if (welcome->descriptor_limit < DescriptorLimit()) {
    return Precondition("the keeper may have " + std::to_string(welcome->descriptor_limit) +
                        " open files and the daemon " + std::to_string(DescriptorLimit()) +
                        ": it could not keep them all; give both the same LimitNOFILE=");
  }
  MutexLock lock(send_mutex_);
  socket_ = std::move(*socket);
  sent_ = acknowledged_ = seen_acknowledged_ = 0;
  silent_since_ = kNever;
  connected_ = true;
  return *welcome;
}

Result<std::vector<Kept>> KeeperLink::Take() {
  std::vector<Kept> all;
  keeper::Assembly assembly;
  std::array<std::byte, keeper::kMaxMessageBytes> buffer;
  Error failure = Unavailable("the keeper does not hand over what it holds");
  if (Status sent = Send(BytesOf(Command{.header = {.kind = Kind::kTake}}), {}); !sent.ok()) {
    Drop();
    return std::move(sent).error();
  }
  while (WaitFor(socket_.get(), POLLIN, After(BootClock::now(), kPartBound))) {
    Result<ReceivedMessage> message = ReceiveMessage(socket_.get(), buffer, /*dont_wait=*/true);
    if (!message.ok() && message.error().code == Code::kUnavailable) continue;
    if (!message.ok()) {
      failure = std::move(message).error();
      break;
    }
    if (message->size == 0) break;
    const std::span<const std::byte> bytes = std::span(buffer).first(message->size);
    const std::optional<Kind> kind = keeper::KindOf(bytes);
    if (kind == Kind::kEnd && assembly.empty()) return all;
    if (kind == Kind::kAck) continue;
    const auto part = keeper::ParsePart(bytes, message->descriptors.size());
    if (kind != Kind::kKept || !part) {
      failure = Unavailable("what the keeper hands over makes no sense");
      break;
    }
    auto added =
        assembly.Add(*part, bytes.subspan(sizeof(keeper::Part)), std::move(message->descriptors));
    if (!added.ok()) {
      failure = std::move(added).error();
      break;
    }
    if (*added) all.push_back({(*added)->key, std::move((*added)->entry)});
  }
  Drop();
  return failure;
}

void KeeperLink::Put(std::uint64_t key, std::string record, std::vector<int> descriptors,
                     std::shared_ptr<const void> owner) {
  Enqueue({Kind::kPut, key, std::move(record), std::move(descriptors), std::move(owner), false});
}

void KeeperLink::PutRecord(std::uint64_t key, std::string record) {
  Enqueue({.kind = Kind::kPut, .key = key, .record = std::move(record), .same_descriptors = true});
}

void KeeperLink::Erase(std::uint64_t key) { Enqueue({.kind = Kind::kErase, .key = key}); }

void KeeperLink::Tell(Kind kind) { Enqueue({.kind = kind}); }

void KeeperLink::Enqueue(Note note) {
  if (!connected_) return;
  MutexLock lock(queue_mutex_);
  queue_.push_back(std::move(note));
}

void KeeperLink::Flush() {
  if (!connected_) return;
  // Who comes while another sends finds his notes sent when the lock is his.
  MutexLock sending(send_mutex_);
  std::deque<Note> notes;
  {
    MutexLock lock(queue_mutex_);
    notes.swap(queue_);
  }
  for (const Note& note : notes) {
    if (!connected_) return;
    if (const Status sent = SendNote(note); !sent.ok()) return Break(sent.error().message);
  }
}

Status KeeperLink::SendNote(const Note& note) {
  std::uint64_t sequence = sent_;
  Status sent;
  if (note.kind == Kind::kPut) {
    sent = keeper::SendEntry({.kind = Kind::kPut,
                              .key = note.key,
                              .record = note.record,
                              .descriptors = note.descriptors,
                              .same_descriptors = note.same_descriptors},
                             sequence,
                             [this](std::span<const std::byte> bytes, std::span<const int> fds) {
                               return Send(bytes, fds);
                             });
  } else {
    Command command{.header = {.kind = note.kind}, .key = note.key, .sequence = ++sequence};
    sent = Send(BytesOf(command), {});
  }
  sent_ = sequence;
  return sent;
}

Status KeeperLink::Send(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  return keeper::SendPatiently(socket_.get(), bytes, descriptors, kSendBound);
}

void KeeperLink::Break(const std::string& why) {
  why_ = why;
  connected_ = false;
  // The loop sees the hang-up and closes it.
  shutdown(socket_.get(), SHUT_RDWR);
  MutexLock lock(queue_mutex_);
  queue_.clear();
}

void KeeperLink::Drop() {
  MutexLock lock(send_mutex_);
  connected_ = false;
  socket_.Reset();
  MutexLock queue(queue_mutex_);
  queue_.clear();
}

std::string KeeperLink::why() const {
  MutexLock lock(send_mutex_);
  return why_;
}

bool KeeperLink::OnReadable() {
  std::array<std::byte, sizeof(keeper::Ack)> buffer;
  while (connected_) {
    Result<ReceivedMessage> message = ReceiveMessage(socket_.get(), buffer, /*dont_wait=*/true);
    if (!message.ok() && message.error().code == Code::kUnavailable) return true;
    const auto ack = message.ok() ? ReadPacket<keeper::Ack>(std::span(buffer).first(message->size))
                                  : std::nullopt;
    if (!ack) {
      MutexLock lock(send_mutex_);
      why_ = message.ok() && message->size == 0 ? "it closed the connection"
                                                : "its answer makes no sense";
      break;
    }
    acknowledged_ = ack->sequence;
  }
  connected_ = false;
  return false;
}

bool KeeperLink::Check(Time now) {
  if (!connected_) return false;
  const std::uint64_t acknowledged = acknowledged_;
  if (acknowledged == sent_ || acknowledged != seen_acknowledged_) {
    seen_acknowledged_ = acknowledged;
    silent_since_ = kNever;
    return true;
  }
  if (silent_since_ == kNever) silent_since_ = now;
  if (now - silent_since_ < kAnswerBound) return true;
  {
    MutexLock lock(send_mutex_);
    why_ = "it has not answered for seconds";
  }
  connected_ = false;
  return false;
}

}  // namespace gpulease::state
