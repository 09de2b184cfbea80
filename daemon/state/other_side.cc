// SPDX-License-Identifier: Apache-2.0
#include "daemon/state/other_side.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/process_status.h"
#include "base/unique_fd.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace gpulease::keeper {
namespace {

Error Denied(std::string message) {
  return MakeError(Code::kPermissionDenied, Reason::kUnspecified, std::move(message));
}

}  // namespace

Status CheckOtherSide(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return ErrnoError("SO_PEERCRED", errno);
  if (peer.uid != geteuid()) {
    return Denied("it is of user " + std::to_string(peer.uid) + ", daemon and keeper are of one, " +
                  std::to_string(geteuid()));
  }
  int pidfd = -1;
  length = sizeof pidfd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) != 0)
    pidfd = static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
  const UniqueFd process(pidfd);
  const std::optional<ProcessStatus> status = ReadProcessStatus(peer.pid);
  pollfd dead{process.get(), POLLIN, 0};
  // What was read is its process's if that lives still.
  if (!status || !process || poll(&dead, 1, 0) != 0 || status->uid != peer.uid) {
    return Denied(
        "its process cannot be seen: daemon and keeper need the same PID namespace (in containers, "
        "the machine's)");
  }
  if (status->pid_namespaces != 1) return Denied("it is in a container");
  return {};
}

}  // namespace gpulease::keeper
