// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/ipc_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/descriptor_channel.h"
#include "base/packet.h"
#include "base/unix_listener.h"

namespace gpulease::memory {
namespace {

// The first context of a GPU that was asleep; a call of a driver that works.
constexpr Duration kPrepare = std::chrono::seconds(60);
constexpr Duration kMake = std::chrono::seconds(5);

Error Unavailable(std::string message) {
  return MakeError(Code::kUnavailable, Reason::kDriver, std::move(message));
}

bool WaitReadable(int fd, Duration bound) {
  const Time until = After(BootClock::now(), bound);
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - BootClock::now());
    if (left.count() <= 0) return false;
    pollfd polled{fd, POLLIN, 0};
    if (poll(&polled, 1, static_cast<int>(left.count())) > 0) return true;
  }
}

// This process's environment, with `gpu` alone for the driver to show.
std::vector<std::string> EnvironmentFor(const std::string& gpu) {
  constexpr std::string_view kVisible = "CUDA_VISIBLE_DEVICES=";
  std::vector<std::string> variables = {std::string(kVisible) + gpu};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with(kVisible)) variables.emplace_back(*variable);
  }
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Runs it until it has detached itself. An errno, or 0.
int Spawn(const std::string& program, std::vector<std::string> arguments, int listening,
          const std::string& gpu, int* status) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, listening, STDIN_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // The daemon's threads block the signals that its loop reads.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<std::string> environment = EnvironmentFor(gpu);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes,
                                Pointers(arguments).data(), Pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return error;
  while (waitpid(pid, status, 0) < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

IpcMemory::IpcMemory(IpcPlace place, std::string gpu)
    : place_(std::move(place)),
      gpu_(std::move(gpu)),
      path_(place_.directory + "/ipc-" + gpu_ + ".sock") {}

Result<bool> IpcMemory::Prepare() {
  const Result<Answer> answer = Ask({.kind = ipc::Kind::kReady}, kPrepare);
  if (!answer.ok()) return answer.error();
  return answer->started;
}

Result<IpcBlock> IpcMemory::CreateBlock(Bytes bytes) {
  Result<Answer> answer = Ask({.kind = ipc::Kind::kMake, .bytes = bytes}, kMake);
  if (!answer.ok()) return std::move(answer).error();
  if (answer->descriptors.size() != 1)
    return Unavailable("gpulease-ipc-host of " + gpu_ + " sent no descriptor with its block");
  IpcBlock block;
  block.handle.assign(answer->reply.handle, sizeof answer->reply.handle);
  block.offset = answer->reply.offset;
  block.keeps = std::move(answer->descriptors.front());
  return block;
}

bool IpcMemory::IsThere() const {
  const Result<UniqueFd> line = Connect();
  return line.ok() && *line;
}

Result<IpcMemory::Answer> IpcMemory::Ask(const ipc::Request& request, Duration bound) {
  while (true) {
    Result<Line> line = Reach();
    if (!line.ok()) return std::move(line).error();
    Answer answer;
    answer.started = line->started;
    std::byte buffer[sizeof(ipc::Reply)];
    if (SendMessage(line->socket.get(), BytesOf(request), {}).ok()) {
      if (!WaitReadable(line->socket.get(), bound)) {
        return Unavailable(
            "gpulease-ipc-host of " + gpu_ + " has not answered for " +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(bound).count()) +
            " s: see whether the GPU answers (nvidia-smi), else kill that process");
      }
      Result<ReceivedMessage> received =
          ReceiveMessage(line->socket.get(), buffer, /*dont_wait=*/true);
      if (!received.ok() && received.error().code == Code::kResourceExhausted)
        return std::move(received).error();
      const auto reply = received.ok()
                             ? ReadPacket<ipc::Reply>(std::span(buffer).first(received->size))
                             : std::nullopt;
      if (reply && reply->magic == ipc::kMagic && reply->version == ipc::kVersion) {
        if (reply->code != 0) {
          return MakeError(static_cast<Code>(reply->code), static_cast<Reason>(reply->reason),
                           TextOf(reply->message));
        }
        answer.reply = *reply;
        answer.descriptors = std::move(received->descriptors);
        return answer;
      }
    }
    // One that was just about to end, as it had nothing to do, is replaced.
    if (line->started) {
      return Unavailable("gpulease-ipc-host of " + gpu_ +
                         " ended before it answered: the daemon's log may say why");
    }
  }
}

Result<IpcMemory::Line> IpcMemory::Reach() {
  MutexLock lock(mutex_);
  Result<UniqueFd> there = Connect();
  if (!there.ok()) return std::move(there).error();
  if (*there) return Line{std::move(*there), false};
  GPULEASE_RETURN_IF_ERROR(Start());
  Result<UniqueFd> started = Connect();
  if (!started.ok()) return std::move(started).error();
  if (!*started)
    return Unavailable("gpulease-ipc-host of " + gpu_ + " ended as soon as it was started");
  return Line{std::move(*started), true};
}

Result<UniqueFd> IpcMemory::Connect() const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof address.sun_path) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     path_ +
                         " is longer than a socket's path may be: give the daemon a shorter "
                         "--runtime-dir");
  }
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  UniqueFd socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_fd) return ErrnoError("socket", errno);
  if (connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return socket_fd;
  if (errno == ENOENT || errno == ECONNREFUSED) return UniqueFd();
  return ErrnoError("connect to " + path_, errno);
}

Status IpcMemory::Start() const {
  Result<UniqueFd> listening = ListenUnix(path_, SOCK_SEQPACKET, 0600);
  if (!listening.ok()) return std::move(listening).error();
  std::vector<std::string> arguments = {"gpulease-ipc-host", "--gpu=" + gpu_, "--socket=" + path_};
  if (!place_.simulated_directory.empty())
    arguments.push_back("--simulated=" + place_.simulated_directory);
  int status = 0;
  const int error = Spawn(place_.program, std::move(arguments), listening->get(), gpu_, &status);
  if (error == 0 && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS) return {};
  unlink(path_.c_str());
  return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                   "memory with an IPC handle needs " + place_.program +
                       ", which cannot be started: " +
                       (error != 0 ? std::string(std::strerror(error))
                                   : "it ended at once; the daemon's log may say why") +
                       ". It belongs beside gpuleased");
}

}  // namespace gpulease::memory
