// SPDX-License-Identifier: Apache-2.0
#include "client/playground/process.h"

#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "client/playground/interruption.h"

namespace gpulease::playground {
namespace {

constexpr int kChannel = 3;

// Between fork and exec: calls that are safe there alone.
[[noreturn]] void Become(const Process::Options& options, char** arguments, pid_t parent) {
  setpgid(0, 0);  // Ctrl-C is for the parent, which ends its processes in order
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, options.when_parent_dies);
  if (getppid() != parent) _exit(127);
  if (options.output >= 0) dup2(options.output, STDOUT_FILENO);
  if (options.errors >= 0) dup2(options.errors, STDERR_FILENO);
  if (options.channel == kChannel) {
    // dup2 to itself would leave it close-on-exec.
    const int moved = dup(options.channel);
    dup2(moved, kChannel);
    close(moved);
  } else if (options.channel >= 0) {
    dup2(options.channel, kChannel);
  }
  execv(options.path.c_str(), arguments);
  _exit(127);
}

}  // namespace

std::string MyPath() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) throw std::runtime_error("/proc/self/exe cannot be read: is /proc mounted?");
  return {path, static_cast<std::size_t>(length)};
}

std::string BesideMe(const std::string& name) {
  const std::string me = MyPath();
  return me.substr(0, me.rfind('/') + 1) + name;
}

Process Process::Start(const Options& options) {
  std::vector<std::string> words = {options.path};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(options, arguments.data(), parent);
  if (pid < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  Process process;
  process.pid_ = pid;
  process.pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.pidfd_) {
    const int error = errno;
    kill(pid, SIGKILL);  // not waited for yet: the pid is still its own
    waitpid(pid, nullptr, 0);
    throw std::runtime_error(std::string("pidfd_open: ") + std::strerror(error));
  }
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), pidfd_(std::move(other.pidfd_)) {}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    End();
    pid_ = std::exchange(other.pid_, 0);
    pidfd_ = std::move(other.pidfd_);
  }
  return *this;
}

Process::~Process() { End(); }

void Process::End() noexcept {
  if (!pidfd_) return;
  Signal(SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pidfd_.Reset();
}

void Process::Signal(int signal) const {
  if (pidfd_) syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0);
}

std::optional<int> Process::Wait(std::chrono::milliseconds timeout) {
  if (!WaitReadable(pidfd_.get(), timeout)) return std::nullopt;
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pidfd_.Reset();
  return status;
}

}  // namespace gpulease::playground
