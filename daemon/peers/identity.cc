// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/identity.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace gpulease::peers {
namespace {

constexpr long kPidFilesystem =
    0x50494446;  // PID_FS_MAGIC: pidfds with an inode per process, Linux 6.9 and later
constexpr uid_t kOverflowUid = 65534;

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

std::string CgroupOf(std::int32_t pid) {
  std::ifstream stream("/proc/" + std::to_string(pid) + "/cgroup");
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return "";
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
    peer.process = (StartTime(peer.pid) << 22) ^ static_cast<std::uint64_t>(peer.pid);
  }
  if (peer.pid != 0) {
    peer.program = ReadLine("/proc/" + std::to_string(peer.pid) + "/comm");
    peer.cgroup = CgroupOf(peer.pid);
  }
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
