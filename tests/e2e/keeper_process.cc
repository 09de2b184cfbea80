// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/keeper_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

// Whether somebody listens on the socket, without disturbing him: its file is there a moment
// before.
bool Listens(const std::string& path) {
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    // "… REFERENCES PROTOCOL FLAGS TYPE STATE INODE PATH"; the flag is __SO_ACCEPTCON.
    if (line.ends_with(" " + path) && line.find(" 00010000 ") != std::string::npos) return true;
  }
  return false;
}

std::size_t Count(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    ++count;
  return count;
}

}  // namespace

KeeperProcess::KeeperProcess(std::string runtime_dir, int away_seconds)
    : runtime_dir_(std::move(runtime_dir)), away_seconds_(away_seconds) {
  Start();
}

KeeperProcess::~KeeperProcess() { Kill(); }

void KeeperProcess::Start() {
  GPULEASE_CHECK(pid_ < 0, "the keeper runs already");
  const std::string program = BuiltProgram("gpulease-keeper");
  const std::string log_path = folder_.path() + "/log";
  const std::string away = std::to_string(away_seconds_);
  const std::string socket = runtime_dir_ + "/keeper.sock";
  pid_ = fork();
  GPULEASE_CHECK(pid_ >= 0, "fork");
  if (pid_ == 0) {
    const int out = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(out, 1);
    dup2(out, 2);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl(program.c_str(), program.c_str(), "--runtime-dir", runtime_dir_.c_str(), "--away-seconds",
          away.c_str(), nullptr);
    _exit(127);
  }
  GPULEASE_CHECK(Eventually([&] { return Listens(socket); }),
                 "the keeper does not listen:\n" + log());
}

void KeeperProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

int KeeperProcess::Stop() {
  kill(pid_, SIGTERM);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void KeeperProcess::Upgrade() {
  const std::size_t before = Count(log(), "goes on with");
  kill(pid_, SIGHUP);
  GPULEASE_CHECK(Eventually([&] { return Count(log(), "goes on with") > before; }),
                 "the keeper does not go on:\n" + log());
}

std::string KeeperProcess::log() const {
  std::ifstream stream(folder_.path() + "/log");
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::size_t KeeperProcess::open_descriptors() const { return OpenDescriptors(pid_); }

}  // namespace gpulease::e2e
