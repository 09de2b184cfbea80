// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/client_process.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/descriptor_channel.h"
#include "tests/e2e/daemon_process.h"

namespace gpulease::e2e {
namespace {

constexpr int kSocket = 3;
constexpr int kPatienceMs = 60'000;

}  // namespace

bool CanSwitchUsers() { return geteuid() == 0; }

ClientProcess::ClientProcess(const std::string& runtime_dir, ClientOptions options) {
  int ends[2];
  GPULEASE_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  socket_.Reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  const std::string program = BuiltProgram("gpulease-test-client");
  pid_ = options.container ? ForkIntoContainer(*options.container) : fork();
  GPULEASE_CHECK(pid_ >= 0, "fork");
  if (pid_ == 0) {
    if (options.container && setgroups(options.groups.size(), options.groups.data()) != 0)
      _exit(126);
    if (options.uid) {
      if (setgroups(options.groups.size(), options.groups.data()) != 0 ||
          setgid(*options.uid) != 0 || setuid(*options.uid) != 0) {
        _exit(126);
      }
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (theirs.get() == kSocket) {
      if (fcntl(kSocket, F_SETFD, 0) != 0) _exit(126);
    } else if (dup2(theirs.get(), kSocket) < 0) {
      _exit(126);
    }
    execl(program.c_str(), program.c_str(), runtime_dir.c_str(), nullptr);
    _exit(127);
  }
}

ClientProcess::~ClientProcess() { Kill(); }

ClientProcess::ClientProcess(ClientProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), socket_(std::move(other.socket_)) {}

void ClientProcess::Send(std::string_view command) {
  const Status sent = SendMessage(socket_.get(), std::as_bytes(std::span(command)), {});
  GPULEASE_CHECK(sent.ok(), "send to the client: " + sent.error().message);
}

std::string ClientProcess::Receive() {
  pollfd ready = {socket_.get(), POLLIN, 0};
  if (poll(&ready, 1, kPatienceMs) != 1) return "error: no answer within a minute";
  std::array<std::byte, 4096> buffer;
  Result<ReceivedMessage> message = ReceiveMessage(socket_.get(), buffer, false);
  if (!message.ok() || message->size == 0) return "error: the client is gone";
  return std::string(reinterpret_cast<const char*>(buffer.data()), message->size);
}

std::string ClientProcess::Ask(std::string_view command) {
  Send(command);
  return Receive();
}

void ClientProcess::Connect() {
  for (const char* command : {"dial", "hello"}) {
    const std::string answer = Ask(command);
    GPULEASE_CHECK(!answer.starts_with("error"), std::string(command) + ": " + answer);
  }
}

std::uint64_t ClientProcess::LeaseOf(const std::string& answer) {
  return std::strtoull(answer.c_str(), nullptr, 10);
}

void ClientProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

int ClientProcess::Exit() {
  socket_.Reset();
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace gpulease::e2e
