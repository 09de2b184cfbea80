// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/forked_program.h"

#include <gpulease/gpulease.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>

#include "base/check.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

std::string Receive(int socket) {
  std::array<char, 4096> buffer;
  const ssize_t size = recv(socket, buffer.data(), buffer.size(), 0);
  return size > 0 ? std::string(buffer.data(), static_cast<std::size_t>(size)) : "ended";
}

}  // namespace

void ForkedProgram::Leader::Say(const std::string& text) const {
  if (send(socket_, text.data(), text.size(), MSG_NOSIGNAL) < 0) _exit(1);
}

std::string ForkedProgram::Leader::Await() const {
  const std::string text = Receive(socket_);
  if (text == "ended") _exit(0);
  return text;
}

ForkedProgram::ForkedProgram(const std::function<void(Leader&)>& work) {
  std::array<int, 2> ends{};
  GPULEASE_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0,
                 "a socket pair");
  socket_.Reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  pid_ = fork();
  GPULEASE_CHECK(pid_ >= 0, "fork");
  if (pid_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  socket_.Reset();
  Leader leader(theirs.get());
  try {
    work(leader);
  } catch (const Exception& error) {
    leader.Say("error " + std::to_string(static_cast<int>(error.code())) + " " +
               std::to_string(static_cast<int>(error.reason())) + ": " + error.what());
  }
  _exit(0);
}

ForkedProgram::~ForkedProgram() { Kill(); }

void ForkedProgram::Tell(const std::string& text) const {
  static_cast<void>(send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL));
}

std::string ForkedProgram::Hear() const {
  pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  const auto patience = std::chrono::milliseconds(kPatience).count();
  if (poll(&entry, 1, static_cast<int>(patience)) <= 0) return "silent";
  return Receive(socket_.get());
}

void ForkedProgram::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace gpulease::e2e
