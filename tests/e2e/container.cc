// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/container.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/unique_fd.h"

namespace gpulease::e2e {
namespace {

// Where cgroup v2 is mounted, "" where it is not.
std::string CgroupMount() {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string device, point, type, rest; mounts >> device >> point >> type;) {
    std::getline(mounts, rest);
    if (type == "cgroup2") return point;
  }
  return "";
}

bool Write(const std::string& path, const std::string& text) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace

std::string WhyNoContainers() {
  static const std::string* const why = new std::string([]() -> std::string {
    if (geteuid() != 0) return "containers can be made by root alone";
    ContainerOptions options;
    options.root_uid = 100'000;
    const pid_t child = ForkIntoContainer(options);
    if (child == 0) _exit(0);
    if (child < 0) return std::string("no namespaces can be made here: ") + std::strerror(errno);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : "its namespaces cannot be set up";
  }());
  return *why;
}

pid_t ForkIntoContainer(const ContainerOptions& options) {
  int gate[2], result[2];
  if (pipe2(gate, O_CLOEXEC) != 0 || pipe2(result, O_CLOEXEC) != 0) return -1;
  UniqueFd wait(gate[0]), open_gate(gate[1]), told(result[0]), tell(result[1]);
  // A plain fork first, after which libc knows that there is one thread.
  const pid_t between = fork();
  if (between < 0) return -1;
  pid_t child = 0;
  if (between == 0) {
    const unsigned long flags = CLONE_PARENT | CLONE_NEWPID | CLONE_NEWNS | SIGCHLD |
                                (options.root_uid ? CLONE_NEWUSER : 0);
    child = static_cast<pid_t>(syscall(SYS_clone, flags, nullptr, nullptr, nullptr, 0));
    if (child != 0)
      _exit(write(tell.get(), &child, sizeof child) == sizeof child && child > 0 ? 0 : 125);
  } else {
    waitpid(between, nullptr, 0);
    if (read(told.get(), &child, sizeof child) != sizeof child || child < 0) return -1;
  }
  if (child > 0) {
    const std::string proc = "/proc/" + std::to_string(child);
    bool done = true;
    if (options.root_uid) {
      const std::string map = "0 " + std::to_string(*options.root_uid) + " 1000";
      done = Write(proc + "/uid_map", map) && Write(proc + "/gid_map", map);
    }
    if (!options.cgroup.empty()) {
      done = done && Write(CgroupMount() + options.cgroup + "/cgroup.procs", std::to_string(child));
    }
    // A closed gate tells the child that it is no use.
    if (done) [[maybe_unused]]
      const ssize_t opened = write(open_gate.get(), "x", 1);
    return child;
  }
  open_gate.Reset();
  char byte;
  if (read(wait.get(), &byte, 1) != 1) _exit(125);
  if (options.root_uid && (setgid(0) != 0 || setuid(0) != 0)) _exit(125);
  // Its own PIDs are what its /proc shows, and nobody else's.
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) _exit(125);
  static_cast<void>(mount("proc", "/proc", "proc", 0, nullptr));
  return 0;
}

Cgroup::Cgroup(const std::string& name) {
  const std::string mount = CgroupMount();
  if (mount.empty() || mkdir((mount + "/" + name).c_str(), 0755) != 0) return;
  path_ = "/" + name;
}

Cgroup::~Cgroup() {
  if (!path_.empty()) rmdir((CgroupMount() + path_).c_str());
}

}  // namespace gpulease::e2e
