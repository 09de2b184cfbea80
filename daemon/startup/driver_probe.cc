// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/driver_probe.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <sstream>

#include "driver/gpu_probe.h"

namespace gpulease::startup {
namespace {

ProbeResult Ask(const std::string& simulated_directory) {
  driver::DriverChoice choice;
  if (simulated_directory != "-") choice.simulated_directory = simulated_directory;
  Result<std::shared_ptr<const driver::CudaDriver>> cuda = driver::CudaDriver::Load(choice);
  if (!cuda.ok()) return std::move(cuda).error();
  Result<std::vector<driver::GpuDescription>> gpus = driver::DescribeGpus(**cuda, nullptr);
  if (!gpus.ok()) return std::move(gpus).error();
  std::vector<std::string> uuids;
  for (const driver::GpuDescription& gpu : *gpus) uuids.push_back(gpu.uuid);
  return uuids;
}

Error Unavailable(std::string message) {
  return MakeError(Code::kUnavailable, Reason::kDriver, std::move(message));
}

// Starts /proc/self/exe --probe with its answer going to `answer`. An errno, or 0.
int Spawn(const std::string& simulated_directory, int answer, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, answer, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // The daemon's threads block the signals that its loop reads.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::string words[] = {"gpuleased",
                         "--probe=" + (simulated_directory.empty() ? "-" : simulated_directory)};
  char* arguments[] = {words[0].data(), words[1].data(), nullptr};
  const int error = posix_spawn(pid, "/proc/self/exe", &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

DriverProbe::~DriverProbe() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, WNOHANG);
}

void DriverProbe::Start(Callback done) {
  if (running()) return;
  done_ = std::move(done);
  since_ = BootClock::now();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return std::exchange(done_, nullptr)(ErrnoError("pipe", errno));
  }
  answer_.Reset(ends[0]);
  const UniqueFd writing(ends[1]);
  if (const int error = Spawn(simulated_directory_, writing.get(), &pid_); error != 0) {
    pid_ = -1;
    return std::exchange(done_, nullptr)(ErrnoError("start a process that asks the driver", error));
  }
  // The process's end and not the pipe's: a GPU that is slow to close keeps the process for long.
  pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  end_ = loop_.WatchDescriptor(pidfd_.get(), EPOLLIN, [this](std::uint32_t) { OnEnd(); });
}

void DriverProbe::OnEnd() {
  end_.reset();
  pidfd_.Reset();
  int status = 0;
  waitpid(pid_, &status, WNOHANG);
  pid_ = -1;
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = read(answer_.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(size));
  answer_.Reset();
  const Callback done = std::exchange(done_, nullptr);
  if (!WIFEXITED(status)) {
    return done(Unavailable("the driver ended the process that asked it (signal " +
                            std::to_string(WTERMSIG(status)) + ")"));
  }
  if (WEXITSTATUS(status) != EXIT_SUCCESS) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return done(Unavailable(std::move(text)));
  }
  std::vector<std::string> uuids;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) uuids.push_back(line);
  done(std::move(uuids));
}

int RunProbe(const std::string& simulated_directory) {
  const ProbeResult result = Ask(simulated_directory);
  if (!result.ok()) {
    std::printf("%s\n", result.error().message.c_str());
    return EXIT_FAILURE;
  }
  for (const std::string& uuid : *result) std::printf("%s\n", uuid.c_str());
  return EXIT_SUCCESS;
}

}  // namespace gpulease::startup
