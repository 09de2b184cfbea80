// SPDX-License-Identifier: Apache-2.0
#include "client/playground/private_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "client/playground/interruption.h"

namespace gpulease::playground {
namespace {

using std::chrono::milliseconds;

// cuInit of a machine with eight GPUs takes seconds.
constexpr auto kStart = std::chrono::seconds(30);
constexpr auto kStop = std::chrono::seconds(5);
constexpr std::size_t kLastBytes = 2000;

std::string ConfigPath(const std::string& directory) { return directory + "/daemon.textproto"; }
std::string LogPath(const std::string& directory) { return directory + "/daemon.log"; }

}  // namespace

PrivateDaemon::PrivateDaemon(const std::string& prefix, const std::string& simulate,
                             const std::string& simulate_without_gpu)
    : directory_(prefix) {
  try {
    Start(simulate);
    const bool usable = std::any_of(node_.gpus.begin(), node_.gpus.end(),
                                    [](const auto& gpu) { return gpu.ready; });
    if (usable) return;
    if (!simulate.empty()) {
      throw std::runtime_error("the daemon has no simulated GPU:\n" + LastLines());
    }
    Stop();
    Start(simulate_without_gpu);
  } catch (...) {
    Stop();
    throw;
  }
}

PrivateDaemon::~PrivateDaemon() { Stop(); }

void PrivateDaemon::Start(const std::string& simulate) {
  const UniqueFd log(
      open(LogPath(runtime_dir()).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  Process::Options options;
  options.path = BesideMe("gpuleased");
  // Where there is no driver it says so at once.
  std::ofstream(ConfigPath(runtime_dir())) << "expected_gpu_count: 0\n";
  options.arguments = {"--runtime-dir", runtime_dir(), "--config", ConfigPath(runtime_dir())};
  if (!simulate.empty()) {
    options.arguments.insert(options.arguments.end(), {"--simulate", simulate});
  }
  options.output = log.get();
  options.errors = log.get();
  options.when_parent_dies = SIGTERM;
  process_ = Process::Start(options);
  const auto end = std::chrono::steady_clock::now() + kStart;
  while (true) {
    try {
      ClientOptions client;
      client.runtime_dir = runtime_dir();
      client.connect_timeout = milliseconds(100);
      client.use_cuda = false;
      node_ = Client(client).Node();
      return;
    } catch (const Exception& error) {
      if (process_.Wait(milliseconds(0))) {
        throw std::runtime_error(options.path + " ended at once:\n" + LastLines());
      }
      if (error.code() != ErrorCode::kUnavailable || std::chrono::steady_clock::now() > end) {
        throw std::runtime_error(options.path + " does not answer: " + error.what() + "\n" +
                                 LastLines());
      }
    }
  }
}

void PrivateDaemon::Stop() noexcept {
  if (!process_) return;
  process_.Signal(SIGTERM);
  // Not Wait(): a second Ctrl-C does not leave it behind.
  pollfd ended{process_.pidfd(), POLLIN, 0};
  const int timeout = static_cast<int>(milliseconds(kStop).count());
  while (poll(&ended, 1, timeout) < 0 && errno == EINTR) {
  }
  process_ = Process();
}

std::string PrivateDaemon::LastLines() const {
  std::ifstream log(LogPath(runtime_dir()));
  std::string text{std::istreambuf_iterator<char>(log), std::istreambuf_iterator<char>()};
  if (text.size() > kLastBytes) text.erase(0, text.find('\n', text.size() - kLastBytes) + 1);
  return text;
}

std::string SimulatedDirectory(const NodeStatus& node, const std::string& runtime_dir) {
  return node.simulated ? runtime_dir + "/simulated" : std::string();
}

std::string Ctl(const std::string& runtime_dir, const std::vector<std::string>& arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  Process::Options options;
  options.path = BesideMe("gpuleasectl");
  options.arguments = {"--runtime-dir", runtime_dir};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  options.output = writing.get();
  options.errors = writing.get();
  Process process = Process::Start(options);
  writing.Reset();
  std::string text;
  char buffer[4096];
  while (WaitReadable(reading.get(), std::chrono::seconds(20))) {
    const ssize_t count = read(reading.get(), buffer, sizeof buffer);
    if (count <= 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  const std::optional<int> status = process.Wait(std::chrono::seconds(5));
  if (!status || !WIFEXITED(*status) || WEXITSTATUS(*status) != 0) {
    throw std::runtime_error(options.path + " failed: " + text);
  }
  return text;
}

}  // namespace gpulease::playground
