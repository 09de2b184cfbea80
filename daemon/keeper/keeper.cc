// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/keeper.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/descriptor_channel.h"
#include "daemon/state/keeper_socket.h"
#include "daemon/state/other_side.h"

namespace gpulease::keeper {
namespace {

// A daemon that takes everything reads as fast as it can.
constexpr Duration kSendBound = std::chrono::seconds(10);
// How long what a former daemon sent is read before the next one is served; its kernel side closes
// within milliseconds of its death.
constexpr Duration kFormerEnds = std::chrono::seconds(2);
constexpr int kMessagesAtOnce = 1024;

int Milliseconds(Duration duration) {
  const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(std::clamp<std::int64_t>(rounded, 0, 1 << 30));
}

}  // namespace

Keeper::Keeper(Options options, UniqueFd listener)
    : options_(std::move(options)), listener_(std::move(listener)), away_since_(BootClock::now()) {}

Keeper::Keeper(Options options, Unpacked from)
    : options_(std::move(options)),
      shelf_(std::move(from.shelf)),
      listener_(std::move(from.listener)),
      connection_(std::move(from.connection)),
      greeted_(static_cast<bool>(connection_)),
      away_since_(BootClock::now()) {}

void Keeper::Run(int signals) {
  TellStatus();
  for (;;) {
    std::array<pollfd, 3> polled = {pollfd{signals, POLLIN, 0}, pollfd{listener_.get(), POLLIN, 0},
                                    pollfd{connection_.get(), POLLIN, 0}};
    int timeout = -1;
    if (!connection_ && !shelf_.entries.empty())
      timeout = Milliseconds(After(away_since_, options_.away_bound) - BootClock::now());
    const int n = poll(polled.data(), polled.size(), timeout);
    if (n < 0 && errno != EINTR) {
      options_.log(ErrnoError("poll", errno).message);
      return;
    }
    if (n < 0) continue;
    if (polled[0].revents != 0) return;
    // The former daemon's last words come before the next daemon's first.
    if (polled[2].revents != 0) Serve(kMessagesAtOnce);
    if (polled[1].revents != 0) Accept();
    if (!connection_ && !shelf_.entries.empty() &&
        BootClock::now() >= After(away_since_, options_.away_bound)) {
      options_.log("no daemon came back: letting go of " + std::to_string(shelf_.entries.size()) +
                   " entries");
      LetGo();
    }
    TellStatus();
  }
}

void Keeper::TellStatus() {
  const std::string text = (connection_ ? "a daemon is connected; " : "no daemon is connected; ") +
                           std::to_string(shelf_.entries.size()) + " entries";
  if (text == told_status_) return;
  told_status_ = text;
  options_.status(text);
}

void Keeper::Accept() {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  if (const Status trusted = CheckOtherSide(socket.get()); !trusted.ok())
    return Refuse(std::move(socket), "the keeper does not serve this: " + trusted.error().message,
                  /*for_good=*/true);
  if (connection_) {
    const Time until = After(BootClock::now(), kFormerEnds);
    while (connection_ && WaitFor(connection_.get(), POLLIN, until) && BootClock::now() < until)
      Serve(kMessagesAtOnce);
    if (connection_) {
      return Refuse(std::move(socket), "another daemon is connected to the keeper",
                    /*for_good=*/false);
    }
  }
  // Room for what a daemon sends while the keeper does something else for a moment.
  const int buffer = 4 << 20;
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  connection_ = std::move(socket);
  greeted_ = false;
  sequence_ = acknowledged_ = 0;
}

void Keeper::Refuse(UniqueFd socket, const std::string& message, bool for_good) {
  if (message != told_refusal_) options_.log("refused a connection: " + message);
  told_refusal_ = message;
  Refused refused;
  refused.for_good = for_good ? 1 : 0;
  CopyText(refused.message, message);
  static_cast<void>(SendMessage(socket.get(), BytesOf(refused), {}).ok());
}

void Keeper::Drop(const std::string& why) {
  if (!why.empty()) options_.log("dropped the daemon's connection: " + why);
  assembly_.Clear();
  connection_.Reset();
  away_since_ = BootClock::now();
}

void Keeper::Drain() {
  // A daemon that stops half-way through an entry is not waited for: it tells it anew.
  const Time until = After(BootClock::now(), kFormerEnds);
  while (connection_ &&
         WaitFor(connection_.get(), POLLIN, assembly_.empty() ? BootClock::now() : until))
    Serve(kMessagesAtOnce);
}

void Keeper::Serve(int most) {
  std::array<std::byte, kMaxMessageBytes> buffer;
  bool ended = false;
  for (int i = 0; i < most; ++i) {
    Result<ReceivedMessage> message = ReceiveMessage(connection_.get(), buffer, /*dont_wait=*/true);
    if (!message.ok()) {
      if (message.error().code == Code::kUnavailable) break;
      return Drop(message.error().message);
    }
    if (message->size == 0) {
      // A daemon that died with answers unread: the kernel reports that first (ECONNRESET), and
      // then gives what it had sent.
      if (std::exchange(ended, true)) return Drop("");
      continue;
    }
    ended = false;
    if (!OnMessage(std::span(buffer).first(message->size), std::move(message->descriptors))) return;
  }
  if (sequence_ == acknowledged_) return;
  Ack ack;
  ack.sequence = acknowledged_ = sequence_;
  Answer(BytesOf(ack));
}

void Keeper::Answer(std::span<const std::byte> bytes) {
  // Who died before he read it may have sent more: reading finds the end.
  const Status sent = Send(bytes, {});
  if (!sent.ok() && errno != EPIPE && errno != ECONNRESET) Drop(sent.error().message);
}

bool Keeper::OnMessage(std::span<const std::byte> bytes, std::vector<UniqueFd> descriptors) {
  const std::optional<Kind> kind = KindOf(bytes);
  if (!greeted_) {
    const std::optional<Hello> hello = ReadPacket<Hello>(bytes);
    if (kind != Kind::kHello || !hello) {
      Drop("it does not speak version " + std::to_string(kVersion) + " of the keeper's protocol");
      return false;
    }
    greeted_ = true;
    Welcome welcome;
    welcome.entries = shelf_.entries.size();
    welcome.takes = shelf_.takes;
    welcome.away_ms = static_cast<std::uint32_t>(Milliseconds(BootClock::now() - away_since_));
    welcome.bound_ms = static_cast<std::uint32_t>(Milliseconds(options_.away_bound));
    welcome.descriptor_limit = DescriptorLimit();
    CopyText(welcome.keeper_version, options_.version);
    Answer(BytesOf(welcome));
    return static_cast<bool>(connection_);
  }
  if (kind == Kind::kPut) {
    const std::optional<Part> part = ParsePart(bytes, descriptors.size());
    if (!part) {
      Drop("a Put whose fields do not agree with what came");
      return false;
    }
    auto added = assembly_.Add(*part, bytes.subspan(sizeof(Part)), std::move(descriptors));
    if (!added.ok()) {
      Drop(added.error().message);
      return false;
    }
    sequence_ = part->sequence;
    if (!*added) return true;
    Assembly::Complete& complete = **added;
    Entry& entry = shelf_.entries[complete.key];
    entry.record = std::move(complete.entry.record);
    if (!complete.same_descriptors) {
      std::swap(entry.descriptors, complete.entry.descriptors);
      Discard(std::move(complete.entry));
    }
    return true;
  }
  const std::optional<Command> command = ReadPacket<Command>(bytes);
  if (!command || !descriptors.empty() || !assembly_.empty()) {
    Drop("a message that makes no sense here");
    return false;
  }
  sequence_ = std::max(sequence_, command->sequence);
  switch (*kind) {
    case Kind::kErase: {
      const auto found = shelf_.entries.find(command->key);
      if (found == shelf_.entries.end()) return true;
      Discard(std::move(found->second));
      shelf_.entries.erase(found);
      return true;
    }
    case Kind::kReset:
      for (auto& [key, entry] : shelf_.entries) Discard(std::move(entry));
      shelf_.entries.clear();
      shelf_.takes = 0;
      return true;
    case Kind::kSettled:
      shelf_.takes = 0;
      return true;
    case Kind::kTake:
      ++shelf_.takes;
      return SendAll();
    default:
      Drop("a message of an unknown kind");
      return false;
  }
}

bool Keeper::SendAll() {
  const auto send = [this](std::span<const std::byte> bytes, std::span<const int> descriptors) {
    return Send(bytes, descriptors);
  };
  std::uint64_t sequence = 0;
  Status sent;
  for (const auto& [key, entry] : shelf_.entries) {
    std::vector<int> descriptors;
    descriptors.reserve(entry.descriptors.size());
    for (const UniqueFd& fd : entry.descriptors) descriptors.push_back(fd.get());
    sent = SendEntry(
        {.kind = Kind::kKept, .key = key, .record = entry.record, .descriptors = descriptors},
        sequence, send);
    if (!sent.ok()) break;
  }
  if (sent.ok()) sent = Send(BytesOf(Command{.header = {.kind = Kind::kEnd}}), {});
  if (!sent.ok()) Drop(sent.error().message);
  return sent.ok();
}

Status Keeper::Send(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  return SendPatiently(connection_.get(), bytes, descriptors, kSendBound);
}

void Keeper::LetGo() {
  for (auto& [key, entry] : shelf_.entries) Discard(std::move(entry));
  shelf_.entries.clear();
  shelf_.takes = 0;
}

}  // namespace gpulease::keeper
