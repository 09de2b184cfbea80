// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/daemon_process.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream stream(path);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The environment, with `extra` entries and without those of the same name.
std::vector<std::string> Environment(const std::vector<std::string>& extra) {
  std::vector<std::string> all = extra;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    bool replaced = text.starts_with("GPULEASE_RUNTIME_DIR=");
    for (const std::string& mine : extra) {
      replaced = replaced || text.starts_with(mine.substr(0, mine.find('=') + 1));
    }
    if (!replaced) all.emplace_back(text);
  }
  return all;
}

// Whether every user may enter `path` and all folders above it.
bool AllMayEnter(std::filesystem::path path) {
  for (; path != path.root_path(); path = path.parent_path()) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0 || (status.st_mode & S_IXOTH) == 0) return false;
  }
  return true;
}

// A copy of the programs that run as other users, with the library that they load: the build may
// stand where other users cannot go, below /root for one.
std::filesystem::path CopyForOtherUsers(const std::filesystem::path& bin) {
  static const TemporaryDirectory* const copy = [&] {
    auto* const directory = new TemporaryDirectory;
    const std::filesystem::path root = directory->path();
    for (const char* folder : {"bin", "lib"}) std::filesystem::create_directory(root / folder);
    for (const char* file :
         {"bin/gpuleased", "bin/gpulease-test-client", "lib/libgpulease-simulated.so"}) {
      if (std::filesystem::exists(bin.parent_path() / file)) {
        std::filesystem::copy_file(bin.parent_path() / file, root / file);
      }
    }
    std::atexit([] { delete copy; });
    return directory;
  }();
  return std::filesystem::path(copy->path()) / "bin";
}

// In the child: puts `sockets` where sd_listen_fds(3) looks for them, and its pid into
// `environment`.
void HandOver(const std::vector<int>& sockets, const std::vector<char*>& environment) {
  if (sockets.empty()) return;
  constexpr int kFirst = 3;
  constexpr int kAside = 100;
  const int count = static_cast<int>(sockets.size());
  for (int i = 0; i < count; ++i) dup2(sockets[static_cast<std::size_t>(i)], kAside + i);
  for (int i = 0; i < count; ++i) dup2(kAside + i, kFirst + i);
  for (char* const entry : environment) {
    if (entry == nullptr || std::strncmp(entry, "LISTEN_PID=", 11) != 0) continue;
    std::snprintf(entry + 11, 11, "%d", getpid());
  }
}

}  // namespace

std::string BuiltProgram(const std::string& name) {
  const char* const build = std::getenv("GPULEASE_BUILD_DIR");
  std::filesystem::path bin = build != nullptr
                                  ? std::filesystem::path(build) / "bin"
                                  : std::filesystem::read_symlink("/proc/self/exe").parent_path();
  if (geteuid() == 0 && !AllMayEnter(bin)) {
    const std::filesystem::path copied = CopyForOtherUsers(bin) / name;
    if (std::filesystem::exists(copied)) return copied;
  }
  return bin / name;
}

TemporaryDirectory::TemporaryDirectory() {
  char name[] = "/tmp/gpulease-test-XXXXXX";
  GPULEASE_CHECK(mkdtemp(name) != nullptr, "mkdtemp");
  GPULEASE_CHECK(chmod(name, 0755) == 0, "chmod");
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::size_t OpenDescriptors(pid_t pid) {
  std::size_t count = 0;
  std::error_code error;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    ++count;
  }
  return count;
}

Ended RunProgram(const std::vector<std::string>& arguments, std::chrono::milliseconds patience) {
  TemporaryDirectory folder;
  const std::string log = folder.path() + "/output";
  std::vector<std::string> texts = arguments;
  const std::vector<char*> argv = Pointers(texts);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(out, 1);
    dup2(out, 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  Ended ended;
  int status = 0;
  if (!Eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; }, patience)) {
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
  }
  if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  ended.output = ReadAll(log);
  return ended;
}

DaemonProcess::DaemonProcess(DaemonOptions options) : options_(std::move(options)) {
  runtime_dir_ = options_.runtime_dir.empty() ? folder_.path() + "/run" : options_.runtime_dir;
  if (options_.uid) {
    GPULEASE_CHECK(chown(folder_.path().c_str(), *options_.uid, *options_.uid) == 0, "chown");
  }
  if (!options_.config.empty()) WriteConfig(options_.config);
  Start();
}

DaemonProcess::~DaemonProcess() { Kill(); }

void DaemonProcess::Start() {
  GPULEASE_CHECK(pid_ < 0, "the daemon runs already");
  const std::string notify = folder_.path() + "/notify";
  unlink(notify.c_str());
  notifications_.clear();
  notify_.Reset(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, notify.c_str(), sizeof address.sun_path - 1);
  GPULEASE_CHECK(bind(notify_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     chmod(notify.c_str(), 0666) == 0,
                 "the notification socket");

  std::vector<std::string> arguments = {BuiltProgram("gpuleased"), "--runtime-dir", runtime_dir_};
  if (!options_.simulate.empty()) {
    arguments.insert(arguments.end(), {"--simulate", options_.simulate});
  }
  if (!options_.config.empty()) {
    arguments.insert(arguments.end(), {"--config", folder_.path() + "/gpuleased.textproto"});
  }
  std::vector<std::string> extra = options_.environment;
  extra.push_back("NOTIFY_SOCKET=" + notify);
  if (!options_.sockets.empty()) {
    extra.push_back("LISTEN_FDS=" + std::to_string(options_.sockets.size()));
    extra.push_back("LISTEN_PID=          ");  // the child's, once it has one
  }
  std::vector<std::string> variables = Environment(extra);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(variables);
  const std::string log_path = folder_.path() + "/log";
  pid_ = options_.container ? ForkIntoContainer(*options_.container) : fork();
  GPULEASE_CHECK(pid_ >= 0, "fork");
  if (pid_ == 0) {
    const int out = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(out, 1);
    dup2(out, 2);
    if (options_.open_files) {
      const rlimit limit = {*options_.open_files, *options_.open_files};
      if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(126);
    }
    if (options_.uid) {
      if (setgroups(0, nullptr) != 0 || setgid(*options_.uid) != 0 || setuid(*options_.uid) != 0) {
        _exit(126);
      }
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    HandOver(options_.sockets, envp);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  if (!options_.await_ready) return;
  GPULEASE_CHECK(AwaitNotification("READY=1") && pid_ > 0,
                 "the daemon did not become ready:\n" + log());
}

const std::string& DaemonProcess::notifications() {
  char text[4096];
  for (ssize_t size; (size = recv(notify_.get(), text, sizeof text, MSG_DONTWAIT)) > 0;)
    notifications_ += std::string(text, static_cast<std::size_t>(size)) + "\n";
  return notifications_;
}

bool DaemonProcess::AwaitNotification(const std::string& text, std::chrono::milliseconds patience) {
  bool said = false;
  static_cast<void>(Eventually(
      [&] {
        said = notifications().find(text) != std::string::npos;
        return said || !running();
      },
      patience));
  return said;
}

void DaemonProcess::WriteConfig(const std::string& text) const {
  std::ofstream(folder_.path() + "/gpuleased.textproto") << text;
}

void DaemonProcess::Signal(int signal) const { kill(pid_, signal); }

bool DaemonProcess::running() {
  if (pid_ < 0) return false;
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return false;
  if (info.si_pid == 0) return true;
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
  return false;
}

void DaemonProcess::Terminate() { kill(pid_, SIGTERM); }

int DaemonProcess::AwaitEnd(std::chrono::milliseconds bound) {
  int status = 0;
  if (!Eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, bound)) return -1;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -100 - WTERMSIG(status);
}

int DaemonProcess::Stop(std::chrono::milliseconds bound) {
  Terminate();
  return AwaitEnd(bound);
}

void DaemonProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

simulated::Node DaemonProcess::node() const {
  Result<simulated::Node> node = simulated::Node::Open(runtime_dir_ + "/simulated");
  GPULEASE_CHECK(node.ok(), "the simulated node");
  return *std::move(node);
}

std::string DaemonProcess::log() const { return ReadAll(folder_.path() + "/log"); }

std::size_t DaemonProcess::open_descriptors() const { return OpenDescriptors(pid_); }

std::size_t DaemonProcess::settled_descriptors() const {
  std::size_t count = open_descriptors();
  int seen = 0;
  static_cast<void>(Eventually([&] {
    const std::size_t now = open_descriptors();
    seen = now == count ? seen + 1 : 0;
    count = now;
    return seen == 25;
  }));
  return count;
}

Bytes DaemonProcess::resident_bytes() const {
  std::ifstream stream("/proc/" + std::to_string(pid_) + "/statm");
  Bytes size = 0, resident = 0;
  stream >> size >> resident;
  return resident * static_cast<Bytes>(sysconf(_SC_PAGESIZE));
}

std::int64_t DaemonProcess::cpu_ticks() const {
  const std::string stat = ReadAll("/proc/" + std::to_string(pid_) + "/stat");
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  std::int64_t user = 0, system = 0;
  fields >> user >> system;
  return user + system;
}

}  // namespace gpulease::e2e
