// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/identity.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/process_status.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace gpulease::peers {
namespace {

constexpr long kPidFilesystem =
    0x50494446;  // PID_FS_MAGIC: pidfds with an inode per process, Linux 6.9 and later
constexpr uid_t kOverflowUid = 65534;
constexpr std::uint64_t kSysAdmin = std::uint64_t{1} << 21;  // CAP_SYS_ADMIN

Error Denied(std::string message) {
  return MakeError(Code::kPermissionDenied, Reason::kUnspecified, std::move(message));
}

std::string ReadLine(const std::string& path) {
  std::ifstream stream(path);
  std::string line;
  std::getline(stream, line);
  return line;
}

// The 22nd field of /proc/PID/stat, in clock ticks since boot; 0 when there is no such process.
std::uint64_t StartTime(std::int32_t pid) {
  const std::string stat = ReadLine("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  std::uint64_t start = 0;
  fields >> start;
  return start;
}

bool IsDead(int pidfd) {
  pollfd poll_for{pidfd, POLLIN, 0};
  return poll(&poll_for, 1, 0) != 0;
}

// The path in the hierarchy with these controllers ("" is cgroup v2's), "" where there is none. A
// line of /proc/PID/cgroup is "NUMBER:CONTROLLERS:PATH".
std::string CgroupOf(std::int32_t pid, const std::string& controllers) {
  std::ifstream stream("/proc/" + std::to_string(pid) + "/cgroup");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t at = line.find(':');
    if (at == std::string::npos || line.compare(at + 1, controllers.size(), controllers) != 0)
      continue;
    const std::size_t path = at + 1 + controllers.size() + 1;
    if (path <= line.size() && line[path - 1] == ':') return line.substr(path);
  }
  return "";
}

std::string ReadAll(const std::string& path) {
  std::ifstream stream(path);
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

// A uid of 0 is not enough: root of a container has it, too, where the container has no user
// namespace. The root user of the machine is not in a PID namespace below the daemon's, is in the
// daemon's user namespace, and has CAP_SYS_ADMIN, unless even the first process here cannot have it
// (the daemon itself is in a container).
bool IsRootOfMachine(const Peer& peer, const ProcessStatus& status) {
  if (peer.user.uid != 0 || status.pid_namespaces != 1) return false;
  const std::string users = ReadAll("/proc/" + std::to_string(peer.pid) + "/uid_map");
  if (users.empty() || users != ReadAll("/proc/self/uid_map")) return false;
  const std::optional<ProcessStatus> first = ReadProcessStatus(1);
  const std::uint64_t most = first ? first->bounding_capabilities : ~std::uint64_t{0};
  return (most & ~status.effective_capabilities & kSysAdmin) == 0;
}

// What others shall read as text: what is not printable ASCII as \\xNN. A process names itself with
// any bytes, and strings that are not UTF-8 would make a whole reply unreadable.
std::string Escaped(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      text += escape;
    }
  }
  return text;
}

// What /proc says of the peer. Believed once its process is seen to live after it was read.
void Describe(Peer& peer) {
  const std::string folder = "/proc/" + std::to_string(peer.pid);
  const std::optional<ProcessStatus> status = ReadProcessStatus(peer.pid);
  peer.user.root = false;
  peer.user.realm = ledger::kUnknownRealm + std::to_string(peer.process);
  if (!status) return;
  peer.program = Escaped(ReadLine(folder + "/comm"));
  peer.cgroup = CgroupOf(peer.pid, "");
  peer.user.root = IsRootOfMachine(peer, *status);
  if (status->pid_namespaces == 1) {
    peer.user.realm.clear();
    return;
  }
  std::string container = ContainerOf(peer.cgroup);
  if (container.empty()) container = ContainerOf(CgroupOf(peer.pid, "name=systemd"));
  if (!container.empty()) peer.user.realm = Escaped(container);
}

// Fills what follows from pid and pidfd.
Status Complete(Identity& identity) {
  struct stat status {};
  struct statfs filesystem {};
  if (fstat(identity.pidfd.get(), &status) != 0 ||
      fstatfs(identity.pidfd.get(), &filesystem) != 0) {
    return ErrnoError("fstat of a pidfd", errno);
  }
  Peer& peer = identity.peer;
  if (filesystem.f_type == kPidFilesystem) {
    peer.process = status.st_ino;
  } else {
    // Pids come back; a pid with a start time does not.
    if (peer.pid == 0)
      return Denied(
          "the process that connected is in a PID namespace that the daemon does not see");
    peer.process = (StartTime(peer.pid) << 22) ^ static_cast<std::uint64_t>(peer.pid);
  }
  Describe(peer);
  if (IsDead(identity.pidfd.get())) return Denied("the process that connected is dead");
  return {};
}

// "Pid:" of a pidfd's fdinfo; 0 when it has none.
std::int32_t PidOfPidfd(int pidfd) {
  std::ifstream stream("/proc/self/fdinfo/" + std::to_string(pidfd));
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("Pid:")) return std::atoi(line.c_str() + 4);
  }
  return 0;
}

}  // namespace

std::string ContainerOf(std::string_view cgroup) {
  constexpr std::size_t kIdDigits = 32;
  for (std::size_t from = 1; from < cgroup.size();) {
    const std::size_t end = std::min(cgroup.find('/', from), cgroup.size());
    const std::string_view part = cgroup.substr(from, end - from);
    std::size_t digits = 0;
    bool id = false;
    for (const char c : part) {
      digits = std::isxdigit(static_cast<unsigned char>(c)) ? digits + 1 : 0;
      id = id || digits >= kIdDigits;
    }
    // What one user can make at will (his logins, the units of his own systemd) is not told apart.
    if (id || part.ends_with(".scope") || part.ends_with(".service") ||
        part.starts_with("lxc.payload.") ||
        (part.starts_with("user-") && part.ends_with(".slice"))) {
      return std::string(cgroup.substr(0, end));
    }
    from = end + 1;
  }
  return cgroup.size() > 1 ? std::string(cgroup) : std::string();
}

Result<Identity> IdentifyPeer(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoError("SO_PEERCRED", errno);
  }
  if (credentials.uid == static_cast<uid_t>(-1) || credentials.uid == kOverflowUid) {
    return Denied(
        "the kernel does not say who is calling: the caller's user has no mapping in the daemon's "
        "user "
        "namespace");
  }
  Identity identity;
  identity.peer.pid = credentials.pid;
  identity.peer.user.uid = credentials.uid;
  identity.peer.user.gid = credentials.gid;
  std::vector<std::uint32_t>& groups = identity.peer.user.groups;
  groups.resize(64);
  length = static_cast<socklen_t>(groups.size() * sizeof groups[0]);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) != 0 &&
      errno == ERANGE) {
    groups.resize(length / sizeof groups[0]);
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) != 0) length = 0;
  }
  groups.resize(length / sizeof groups[0]);

  int pidfd = -1;
  length = sizeof pidfd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0) {
    identity.pidfd.Reset(pidfd);
    GPULEASE_RETURN_IF_ERROR(Complete(identity));
  } else if (errno != ENOPROTOOPT) {
    return ErrnoError("SO_PEERPIDFD", errno);
  } else {
    // Enough to find the connection its place; whoever acts by it is asked for more.
    Describe(identity.peer);
  }
  return identity;
}

Status AdoptPidfd(Identity& identity, UniqueFd pidfd) {
  const std::int32_t pid = PidOfPidfd(pidfd.get());
  if (pid <= 0) return Denied("the descriptor sent with Hello is no pidfd of a living process");
  if (pid != identity.peer.pid) return Denied("the pidfd sent with Hello is another process's");
  identity.pidfd = std::move(pidfd);
  return Complete(identity);
}

Status OpenPidfd(Identity& identity) {
  const long pidfd = syscall(SYS_pidfd_open, identity.peer.pid, 0);
  if (pidfd < 0) return Denied("the process that connected is dead or in another PID namespace");
  identity.pidfd.Reset(static_cast<int>(pidfd));
  return Complete(identity);
}

}  // namespace gpulease::peers
