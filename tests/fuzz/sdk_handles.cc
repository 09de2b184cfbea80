// SPDX-License-Identifier: Apache-2.0
//
// The SDK's end of the handle socket: what a daemon that lies pushes.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/descriptor_channel.h"
#include "client/sdk/src/session/handle_socket.h"
#include "tests/fuzz/input.h"
#include "tests/unit/scratch_dir.h"

namespace gpulease::fuzz {
namespace {

using std::chrono::steady_clock;

struct World {
  ScratchDir scratch;
  std::string path = scratch.path() + "/handles.sock";
  UniqueFd listener{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  UniqueFd null{open("/dev/null", O_RDWR | O_CLOEXEC)};
  World() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    GPULEASE_CHECK(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
                   "bind");
    GPULEASE_CHECK(listen(listener.get(), 8) == 0, "listen");
  }
};

class Play {
 public:
  Play(World& world, Input input) : world_(world), input_(input) {}

  void Run() {
    Greet();
    if (!client_) return;
    for (int step = 0; step < 64 && !input_.empty(); ++step) Step();
  }

 private:
  std::vector<int> Descriptors() {
    const std::uint64_t count = input_.Below(8);
    return std::vector<int>(count == 7 ? kMaxDescriptorsPerMessage : count, world_.null.get());
  }

  // The daemon's answer to Hello, on a thread of its own, as Connect() waits for it.
  void Greet() {
    const std::string_view answer = input_.Flag() ? std::string_view() : input_.LongPart();
    const std::uint8_t kind = input_.Byte();
    std::thread daemon([&] {
      daemon_.Reset(accept4(world_.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!answer.empty()) {
        (void)SendMessage(daemon_.get(), AsBytes(answer), {}).ok();
      } else if (kind == 1) {
        handle::Refused refused;
        std::memset(refused.message, 'x', sizeof refused.message);
        refused.code = static_cast<std::int32_t>(kind);
        (void)SendMessage(daemon_.get(), handle::BytesOf(refused), {}).ok();
      } else {
        handle::Welcome welcome;
        std::memset(welcome.simulated_directory, 'x', kind);
        (void)SendMessage(daemon_.get(), handle::BytesOf(welcome), {}).ok();
      }
    });
    Result<std::shared_ptr<HandleSocket>> client = HandleSocket::Connect(
        {.path = world_.path, .program = "fuzz", .deadline = Soon(std::chrono::seconds(5))});
    daemon.join();
    if (client.ok()) {
      client_ = *client;
    } else {
      GPULEASE_CHECK(!client.error().message.empty(), "an error has a sentence");
    }
  }
  static Deadline Soon(std::chrono::nanoseconds time = {}) { return steady_clock::now() + time; }

  void Step() {
    switch (input_.Below(6)) {
      case 0: {
        const std::vector<int> descriptors = Descriptors();
        (void)SendMessage(daemon_.get(), AsBytes(input_.LongPart()), descriptors).ok();
        break;
      }
      case 1:
      case 2: {
        handle::Push push;
        const std::vector<int> descriptors = Descriptors();
        push.tag = input_.Below(3);
        push.lease_id = input_.Below(4);
        push.count = input_.Flag() ? static_cast<std::uint32_t>(descriptors.size())
                                   : input_.Number<std::uint32_t>();
        push.first = input_.Flag() ? 0 : input_.Number<std::uint32_t>();
        push.total = input_.Flag() ? push.count : input_.Number<std::uint32_t>();
        push.read_only = input_.Byte();
        (void)SendMessage(daemon_.get(), handle::BytesOf(push), descriptors).ok();
        break;
      }
      case 3:
        client_->Expect(input_.Below(3));
        break;
      case 4: {
        const std::uint64_t lease = input_.Below(4);
        const std::uint64_t tag = input_.Below(3);
        const Result<std::vector<HandedLease>> handed = client_->Collect(tag, {&lease, 1}, Soon());
        if (!handed.ok()) break;
        GPULEASE_CHECK(handed->size() == 1 && handed->front().complete(), "all of it or nothing");
        break;
      }
      default:
        client_->ReadAvailable();
        if (input_.Below(4) == 0) (void)client_->Forget(input_.Below(3));
        if (input_.Below(4) == 0) client_->LetGo(input_.Below(4));
    }
  }

  World& world_;
  Input input_;
  UniqueFd daemon_;
  std::shared_ptr<HandleSocket> client_;
};

}  // namespace
}  // namespace gpulease::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulease::fuzz;
  signal(SIGPIPE, SIG_IGN);
  static auto* const world = new World;
  Play(*world, Input(data, size)).Run();
  return 0;
}
