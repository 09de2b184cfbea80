// SPDX-License-Identifier: Apache-2.0
//
// What the keeper holds and how it is told: its protocol against the real Keeper, and records, of
// which a daemon believes what is whole and never more, against the ledger that takes them up.
#include "daemon/keeper/keeper.h"

#include <fcntl.h>
#include <google/protobuf/stubs/logging.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/descriptor_channel.h"
#include "daemon/ledger/ledger.h"
#include "daemon/state/keeper_protocol.h"
#include "daemon/state/record.h"
#include "tests/fuzz/input.h"
#include "tests/unit/ledger_pools.h"

namespace gpulease::fuzz {
namespace {

// A record as its writer makes it, of a body that nobody wrote.
std::string Sealed(std::uint16_t kind, std::string_view body) {
  struct {
    std::uint32_t magic = 0x31524c47;
    std::uint16_t version = 1;
    std::uint16_t kind = 0;
    std::uint32_t bytes = 0;
    std::uint32_t checksum = 0;
  } envelope;
  envelope.kind = kind;
  envelope.bytes = static_cast<std::uint32_t>(body.size());
  envelope.checksum = static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size())));
  std::string text(sizeof envelope, '\0');
  std::memcpy(text.data(), &envelope, sizeof envelope);
  return text.append(body);
}

// A ledger takes up what it can of any records, and its books are right.
void Records(Input& input) {
  ledger::Options options;
  options.pools = {ledger::Gpu("GPU-0", 4 * kGiB), ledger::Node("numa0", 2 * kGiB)};
  options.limits.chunks = 1000;
  ledger::Ledger books(options);
  const Time now{std::chrono::hours(1)};
  ledger::Effects effects;
  for (std::uint64_t session = 1; session <= 2; ++session) {
    ledger::SessionSpec spec;
    spec.user.uid = static_cast<std::uint32_t>(session);
    spec.process = session;
    GPULEASE_CHECK(books.RestoreSession(ledger::SessionId{session}, spec, now).ok(), "a session");
  }
  for (int step = 0; step < 16 && !input.empty(); ++step) {
    const auto kind = static_cast<std::uint16_t>(input.Below(5));
    const std::uint64_t id = input.Below(8);
    const bool aside = input.Below(8) == 0;
    const std::string_view body = input.LongPart();
    const bool sealed = input.Below(4) != 0;
    const std::string bytes = sealed ? Sealed(kind, body) : std::string(body);
    Result<state::Record> record =
        state::Decode(state::KeyOf(static_cast<state::RecordKind>(kind), id), bytes);
    if (!record.ok()) {
      GPULEASE_CHECK(record.error().code == Code::kDataLoss, record.error().message);
      GPULEASE_CHECK(!record.error().message.empty(), "an error has a sentence");
      continue;
    }
    auto* const lease = std::get_if<state::KeptLease>(&*record);
    if (lease == nullptr) continue;
    const Result<state::Record> again =
        state::Decode(state::KeyOf(state::RecordKind::kLease, lease->lease.lease.id.value),
                      state::Encode(*lease));
    GPULEASE_CHECK(again.ok(), "what the daemon writes it reads");
    lease->lease.lease.pool =
        lease->lease.lease.kind == ledger::PoolKind::kHost ? 1 : ledger::PoolIndex{0};
    if (aside) {
      (void)books.SetAside(std::move(lease->lease), now, effects).ok();
    } else {
      (void)books.RestoreLease(std::move(lease->lease), now, effects).ok();
    }
    const std::string wrong = books.CheckInvariants();
    GPULEASE_CHECK(wrong.empty(), wrong);
  }
  for (std::uint64_t session = 1; session <= 2; ++session) {
    books.EndSession(ledger::SessionId{session}, input.Flag(), now, effects);
  }
  const std::string wrong = books.CheckInvariants();
  GPULEASE_CHECK(wrong.empty(), wrong);
}

class Conversation {
 public:
  explicit Conversation(Input& input) : input_(input) {
    int ends[2];
    GPULEASE_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0,
                   "sockets");
    daemon_.Reset(ends[0]);
    // Room for answers, which are read in the end.
    const int room = 8 << 20;
    for (const int end : ends) setsockopt(end, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    keeper::Unpacked from;
    from.connection.Reset(ends[1]);
    from.listener.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    keeper::Keeper::Options options;
    options.version = "fuzz";
    options.log = options.status = [](const std::string&) {};
    keeper_.emplace(std::move(options), std::move(from));
  }

  void Run() {
    for (int step = 0; step < 32 && !input_.empty(); ++step) Step();
    shutdown(daemon_.get(), SHUT_WR);
    keeper_->Drain();
    Read();
    GPULEASE_CHECK(!keeper_->connection(), "the conversation is over");
    for (const auto& [key, entry] : keeper_->shelf().entries) {
      for (const UniqueFd& fd : entry.descriptors) GPULEASE_CHECK(!!fd, "what is kept is open");
    }
    keeper_->LetGo();
  }

 private:
  std::vector<int> Descriptors() {
    static const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const std::uint64_t count = input_.Below(8);
    return std::vector<int>(count == 7 ? kMaxDescriptorsPerMessage : count, null);
  }
  void Send(std::string_view bytes, const std::vector<int>& descriptors) {
    (void)SendMessage(daemon_.get(), AsBytes(bytes), descriptors).ok();
  }
  void Step() {
    switch (input_.Below(4)) {
      case 0: {
        const std::string_view bytes = input_.LongPart();
        Send(bytes, Descriptors());
        break;
      }
      case 1: {
        keeper::Command command;
        command.header.kind = static_cast<keeper::Kind>(input_.Below(14));
        command.key = input_.Below(4);
        command.sequence = input_.Byte();
        Send({reinterpret_cast<const char*>(&command), sizeof command}, {});
        break;
      }
      default: {
        const std::vector<int> descriptors = Descriptors();
        const std::string_view record = input_.Part();
        keeper::Part part;
        part.key = input_.Below(4);
        part.sequence = input_.Byte();
        part.parts = input_.Flag() ? 1 : static_cast<std::uint32_t>(input_.Below(5));
        part.part = part.parts == 1 ? 0 : static_cast<std::uint32_t>(input_.Below(5));
        part.bytes = input_.Below(16) == 0 ? input_.Number<std::uint32_t>()
                                           : static_cast<std::uint32_t>(record.size());
        part.descriptors = input_.Below(16) == 0 ? input_.Number<std::uint32_t>()
                                                 : static_cast<std::uint32_t>(descriptors.size());
        part.same_descriptors = input_.Below(8) == 0 ? 1 : 0;
        std::string bytes(reinterpret_cast<const char*>(&part), sizeof part);
        Send(bytes.append(record), descriptors);
      }
    }
  }
  void Read() {
    static std::array<std::byte, keeper::kMaxMessageBytes> buffer;
    for (;;) {
      const Result<ReceivedMessage> message = ReceiveMessage(daemon_.get(), buffer, true);
      if (!message.ok() || message->size == 0) return;
    }
  }

  Input& input_;
  UniqueFd daemon_;
  std::optional<keeper::Keeper> keeper_;
};

}  // namespace
}  // namespace gpulease::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulease::fuzz;
  signal(SIGPIPE, SIG_IGN);
  static const google::protobuf::LogSilencer silent;
  Input input(data, size);
  if (input.Flag()) {
    Records(input);
  } else {
    Conversation(input).Run();
  }
  return 0;
}
