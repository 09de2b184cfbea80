// SPDX-License-Identifier: Apache-2.0
//
// The handle socket: messages that no honest client sends, with descriptors that it should not
// have, against the real Reception; behind it a registrar that only keeps count.
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <set>
#include <vector>

#include "base/descriptor_channel.h"
#include "tests/fuzz/front.h"
#include "tests/fuzz/input.h"

namespace gpulease::fuzz {
namespace {

using ledger::LeaseId;
using ledger::SessionId;

class Counter final : public peers::Registrar {
 public:
  Result<Admitted> Admit(const peers::Peer& peer, const handle::Hello& hello,
                         const Lifeline&) override {
    GPULEASE_CHECK(peer.pid == getpid(), "whose connection it is");
    GPULEASE_CHECK(peer.process != 0, "a session is a process's");
    const SessionId resumed{hello.resume_session_id};
    if (lost_.erase(resumed) > 0) {
      connected_.insert(resumed);
      return Admitted{resumed, true};
    }
    if (hello.program[0] == '!') {
      return MakeError(Code::kResourceExhausted, Reason::kSessionLimit, std::string(600, 'x'));
    }
    const SessionId session{++last_};
    connected_.insert(session);
    return Admitted{session, false};
  }
  void Took(SessionId session, LeaseId lease, bool) override {
    GPULEASE_CHECK(pushed_.contains({session, lease}), "taken what was never pushed");
  }
  void LostConnection(SessionId session) override {
    GPULEASE_CHECK(connected_.erase(session) == 1, "lost what was not connected");
    lost_.insert(session);
  }
  void Died(SessionId) override { GPULEASE_CHECK(false, "this process lives"); }

  void Pushed(SessionId session, LeaseId lease) { pushed_.insert({session, lease}); }
  // Sessions numbered 1 to this.
  std::uint64_t last() const { return last_; }
  const std::set<SessionId>& lost() const { return lost_; }
  void Clear() {
    GPULEASE_CHECK(connected_.empty(), "every connection is closed");
    lost_.clear();
    pushed_.clear();
    last_ = 0;
  }

 private:
  std::uint64_t last_ = 0;
  std::set<SessionId> connected_, lost_;
  std::set<std::pair<SessionId, LeaseId>> pushed_;
};

struct World {
  Counter counter;
  Front front{counter};
  UniqueFd null{open("/dev/null", O_RDWR | O_CLOEXEC)};
  UniqueFd event{eventfd(0, EFD_CLOEXEC)};
  UniqueFd self{static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))};
  UniqueFd parent{static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0))};
  std::shared_ptr<int> owner = std::make_shared<int>(0);
};

class Play {
 public:
  Play(World& world, Input input) : world_(world), input_(input) {}

  void Run() {
    for (int step = 0; step < 64 && !input_.empty(); ++step) {
      Step();
      if (input_.Below(4) != 0) world_.front.Run();
    }
    clients_ = {};
    world_.front.Run();
    world_.front.served().clear();
    // Sessions that wait for their connection to come back are forgotten in the end.
    for (std::uint64_t session = 1; session <= world_.counter.last(); ++session) {
      world_.front.reception().Forget(SessionId{session});
    }
    world_.front.Run();
    world_.counter.Clear();
    GPULEASE_CHECK(world_.owner.use_count() == 1, "a parcel was let go");
  }

 private:
  UniqueFd& Client() { return clients_[input_.Below(clients_.size())]; }
  SessionId Session() { return SessionId{input_.Below(6)}; }

  std::vector<int> Descriptors() {
    std::vector<int> all;
    const std::array<int, 4> kinds = {world_.self.get(), world_.null.get(), world_.event.get(),
                                      world_.parent.get()};
    const std::uint64_t count = input_.Below(8);
    // Few as a rule, and now and then as many as the kernel takes.
    for (std::uint64_t i = 0; i < (count == 7 ? kMaxDescriptorsPerMessage : count % 3); ++i) {
      all.push_back(kinds[count == 7 ? 1 : input_.Below(kinds.size())]);
    }
    return all;
  }

  template <typename T>
  void Send(const UniqueFd& client, const T& message, std::span<const int> descriptors) {
    // Now and then a little too short.
    const std::span<const std::byte> bytes = handle::BytesOf(message);
    const std::size_t cut = input_.Below(16) == 0 ? input_.Below(8) : 0;
    (void)SendMessage(client.get(), bytes.first(bytes.size() - cut), descriptors).ok();
  }

  void Step() {
    switch (input_.Below(10)) {
      case 0:
        Client() = world_.front.Connect(true);
        break;
      case 1:
        Client() = world_.front.Connect(false);
        break;
      case 2: {
        const UniqueFd& client = Client();
        const std::vector<int> descriptors = Descriptors();
        (void)SendMessage(client.get(), AsBytes(input_.LongPart()), descriptors).ok();
        break;
      }
      case 3: {
        handle::Hello hello;
        const UniqueFd& client = Client();
        hello.resume_session_id = input_.Below(6);
        const std::string_view program = input_.Take(input_.Below(sizeof hello.program + 1));
        program.copy(hello.program, program.size());
        const std::string_view version = input_.Take(input_.Below(sizeof hello.client_version + 1));
        version.copy(hello.client_version, version.size());
        if (input_.Below(8) == 0) hello.header.version = input_.Number<std::uint16_t>();
        Send(client, hello, Descriptors());
        break;
      }
      case 4:
      case 5: {
        handle::Taken taken;
        const UniqueFd& client = Client();
        taken.tag = input_.Below(3);
        taken.lease_id = input_.Below(5);
        taken.count = input_.Flag() ? input_.Byte() : input_.Number<std::uint32_t>();
        taken.ok = static_cast<std::uint32_t>(input_.Below(3));
        Send(client, taken, input_.Below(8) == 0 ? Descriptors() : std::vector<int>());
        break;
      }
      case 6:
      case 7: {
        peers::Parcel parcel;
        const SessionId session = Session();
        parcel.tag = input_.Below(3);
        parcel.lease_id = input_.Below(5);
        parcel.descriptors.assign(1 + input_.Below(600), world_.null.get());
        parcel.owner = world_.owner;
        world_.counter.Pushed(session, LeaseId{parcel.lease_id});
        (void)world_.front.reception().Push(session, std::move(parcel)).ok();
        break;
      }
      case 8: {
        const UniqueFd& client = Client();
        std::array<std::byte, handle::kMaxMessageBytes> buffer;
        for (std::uint64_t n = input_.Below(8); n > 0 && client; --n) {
          (void)ReceiveMessage(client.get(), buffer, /*dont_wait=*/true).ok();
        }
        break;
      }
      default:
        if (input_.Flag()) {
          Client().Reset();
        } else if (input_.Flag()) {
          shutdown(Client().get(), static_cast<int>(input_.Below(3)));
        } else {
          // As the broker does at a session's end, after which nobody resumes it.
          const SessionId session = Session();
          if (!world_.counter.lost().contains(session)) break;
          world_.front.reception().Forget(session);
        }
    }
  }

  World& world_;
  Input input_;
  std::array<UniqueFd, 4> clients_;
};

}  // namespace
}  // namespace gpulease::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulease::fuzz;
  signal(SIGPIPE, SIG_IGN);
  static auto* const world = new World;
  static int count = 0;
  Play(*world, Input(data, size)).Run();
  // Connections with descriptors that were not read keep their place for a moment.
  if (world->front.reception().connection_count() > 32 || ++count % 256 == 0) {
    GPULEASE_CHECK(world->front.RunUntilEmpty(), "every place is free again");
    static const std::size_t open = OpenPeers();
    GPULEASE_CHECK(OpenPeers() == open, "a descriptor is left");
  }
  return 0;
}
