// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/continuation.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <sstream>

namespace gpulease::startup {
namespace {

constexpr char kVariable[] = "GPULEASE_CONTINUATION";

std::string Joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ",") + text;
  return all;
}

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::vector<std::string> Uuids(const Continuation& continuation, bool lost) {
  std::vector<std::string> uuids;
  for (const state::RetiredGpu& gpu : continuation.retired) {
    if (gpu.lost == lost) uuids.push_back(gpu.uuid);
  }
  return uuids;
}

bool IsSocket(int fd, int type) {
  int actual = 0;
  socklen_t size = sizeof actual;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &actual, &size) == 0 && actual == type;
}

void CloseOnExec(int fd, bool close) { fcntl(fd, F_SETFD, close ? FD_CLOEXEC : 0); }

}  // namespace

std::string Format(const Continuation& continuation) {
  std::ostringstream text;
  text << "lock=" << continuation.lock << " grpc=" << continuation.grpc_listener
       << " handles=" << continuation.handle_listener << " activated=" << continuation.activated
       << " waited=" << continuation.waited << " drained=" << Joined(Uuids(continuation, false))
       << " lost=" << Joined(Uuids(continuation, true))
       << " served=" << Joined(continuation.served);
  return text.str();
}

std::optional<Continuation> Parse(std::string_view text) {
  Continuation continuation;
  std::istringstream stream{std::string(text)};
  for (std::string word; stream >> word;) {
    const std::size_t at = word.find('=');
    if (at == std::string::npos) return std::nullopt;
    const std::string key = word.substr(0, at);
    const std::string value = word.substr(at + 1);
    int number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool is_number = error == std::errc() && end == value.data() + value.size();
    if (key == "drained" || key == "lost") {
      for (std::string& uuid : Split(value))
        continuation.retired.push_back({std::move(uuid), key == "lost"});
    } else if (key == "served") {
      continuation.served = Split(value);
    } else if (!is_number) {
      return std::nullopt;
    } else if (key == "lock") {
      continuation.lock = number;
    } else if (key == "grpc") {
      continuation.grpc_listener = number;
    } else if (key == "handles") {
      continuation.handle_listener = number;
    } else if (key == "activated") {
      continuation.activated = number != 0;
    } else if (key == "waited") {
      continuation.waited = number != 0;
    } else {
      return std::nullopt;
    }
  }
  return continuation;
}

std::optional<Continuation> TakeContinuation() {
  const char* const variable = std::getenv(kVariable);
  if (variable == nullptr) return std::nullopt;
  const std::string text = variable;
  unsetenv(kVariable);
  // Of this process, and not of one that started it with its own environment.
  const std::string mine = std::to_string(getpid()) + " ";
  if (!text.starts_with(mine)) return std::nullopt;
  std::optional<Continuation> continuation = Parse(std::string_view(text).substr(mine.size()));
  if (!continuation) return std::nullopt;
  for (const int fd :
       {continuation->lock, continuation->grpc_listener, continuation->handle_listener}) {
    CloseOnExec(fd, true);
  }
  return continuation;
}

Result<peers::Endpoint> AdoptEndpoint(const Continuation& continuation) {
  if (!IsSocket(continuation.grpc_listener, SOCK_STREAM) ||
      !IsSocket(continuation.handle_listener, SOCK_SEQPACKET) ||
      fcntl(continuation.lock, F_GETFD) < 0) {
    return MakeError(Code::kInternal, Reason::kUnspecified,
                     "the sockets of the run before are not there: " + Format(continuation));
  }
  peers::Endpoint endpoint;
  endpoint.lock.Reset(continuation.lock);
  endpoint.grpc_listener.Reset(continuation.grpc_listener);
  endpoint.handle_listener.Reset(continuation.handle_listener);
  endpoint.activated = continuation.activated;
  return endpoint;
}

Error ContinueAs(char** arguments, const peers::Endpoint& endpoint, Continuation continuation) {
  continuation.lock = endpoint.lock.get();
  continuation.grpc_listener = endpoint.grpc_listener.get();
  continuation.handle_listener = endpoint.handle_listener.get();
  continuation.activated = endpoint.activated;
  setenv(kVariable, (std::to_string(getpid()) + " " + Format(continuation)).c_str(), 1);
  // Also what a library may have opened without close-on-exec: a GPU's device node above all.
  syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
  for (const int fd :
       {continuation.lock, continuation.grpc_listener, continuation.handle_listener}) {
    CloseOnExec(fd, false);
  }
  // The program that runs, even when a package has replaced its file meanwhile.
  execv("/proc/self/exe", arguments);
  return ErrnoError("execute /proc/self/exe", errno);
}

}  // namespace gpulease::startup
