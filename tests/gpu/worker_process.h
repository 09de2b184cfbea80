// SPDX-License-Identifier: Apache-2.0
//
// Worker: a gpulease-gpu-worker, as a process that a test talks to and kills.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "tests/e2e/daemon_process.h"

namespace gpulease::gpu_test {

// A worker and its two pipes.
class Worker {
 public:
  Worker(const std::string& runtime_dir, std::vector<std::string> arguments) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    in_.Reset(in[1]);
    out_.Reset(out[0]);
    const std::string program = e2e::BuiltProgram("gpulease-gpu-worker");
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    setenv("GPULEASE_RUNTIME_DIR", runtime_dir.c_str(), 1);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      execv(program.c_str(), argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  }
  ~Worker() {
    if (pid_ > 0) Kill();
  }
  Worker(Worker&&) = delete;

  // The next line; "" when it ended.
  std::string Line() {
    std::string line;
    for (char c; read(out_.get(), &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  void End() {
    in_.Reset();
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  void Kill() {
    kill(pid_, SIGKILL);
    pollfd death{pidfd_.get(), POLLIN, 0};
    poll(&death, 1, 30'000);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
  UniqueFd in_, out_, pidfd_;
};

}  // namespace gpulease::gpu_test
