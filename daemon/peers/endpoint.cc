// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/endpoint.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "base/unix_listener.h"

namespace gpulease::peers {
namespace {

Error Precondition(std::string message) {
  return MakeError(Code::kFailedPrecondition, Reason::kUnspecified, std::move(message));
}

Result<UniqueFd> TakeLock(const std::string& directory) {
  const std::string path = directory + "/gpuleased.lock";
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock) return ErrnoError("open " + path, errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = {};
    if (read(lock.get(), pid, sizeof pid - 1) < 0) pid[0] = 0;
    pid[std::strcspn(pid, "\n")] = 0;
    return MakeError(Code::kAlreadyExists, Reason::kUnspecified,
                     "gpuleased is already running " +
                         (*pid == 0 ? "" : "(pid " + std::string(pid) + ") ") + "in " + directory +
                         "; stop it first, or choose another --runtime-dir");
  }
  // The lock is what counts; the pid is for people. Written over the last one before what is left
  // of that is cut off, for a full file system has no room for what was let go a moment before.
  const std::string pid = std::to_string(getpid()) + "\n";
  const auto size = static_cast<ssize_t>(pid.size());
  const ssize_t written = pwrite(lock.get(), pid.data(), pid.size(), 0);
  if (written < 0 && errno != ENOSPC && errno != EDQUOT) return ErrnoError("write " + path, errno);
  if (ftruncate(lock.get(), written == size ? size : 0) != 0)
    return ErrnoError("truncate " + path, errno);
  return lock;
}

// Takes the service manager's sockets; false when it has none for this process.
Result<bool> TakeActivated(Endpoint& endpoint) {
  const int count = sd_listen_fds(/*unset_environment=*/1);
  if (count < 0) return ErrnoError("sd_listen_fds", -count);
  if (count == 0) return false;
  for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + count; ++fd) {
    UniqueFd listener(fd);
    UniqueFd* place = nullptr;
    if (sd_is_socket_unix(fd, SOCK_STREAM, 1, nullptr, 0) > 0) place = &endpoint.grpc_listener;
    if (sd_is_socket_unix(fd, SOCK_SEQPACKET, 1, nullptr, 0) > 0) {
      place = &endpoint.handle_listener;
    }
    if (place == nullptr || *place) {
      return Precondition(
          "the service manager handed over a socket that is neither the stream nor the sequential "
          "packet one, or two of a kind: gpuleased.socket must have one ListenStream= and one "
          "ListenSequentialPacket=");
    }
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) return ErrnoError("fcntl", errno);
    *place = std::move(listener);
  }
  if (!endpoint.grpc_listener || !endpoint.handle_listener) {
    return Precondition(
        "the service manager handed over one socket of the two: gpuleased.socket must have "
        "ListenStream= for gpulease.sock and ListenSequentialPacket= for handles.sock");
  }
  endpoint.activated = true;
  return true;
}

// The service manager makes the sockets for everybody and as the daemon's own; the configuration
// may say that they are for one group alone.
Status GiveToGroup(const std::string& path, gid_t group) {
  if (chmod(path.c_str(), 0660) != 0) return ErrnoError("chmod " + path, errno);
  if (chown(path.c_str(), static_cast<uid_t>(-1), group) != 0)
    return ErrnoError("chown " + path, errno);
  return {};
}

}  // namespace

Result<Endpoint> OpenEndpoint(const RuntimePaths& paths, const std::string& socket_group) {
  std::optional<gid_t> group;
  if (!socket_group.empty()) {
    const struct group* const entry = getgrnam(socket_group.c_str());
    if (entry == nullptr) {
      return MakeError(Code::kNotFound, Reason::kBadField,
                       "socket_group: there is no group \"" + socket_group + "\"");
    }
    group = entry->gr_gid;
  }
  const mode_t mode = group ? 0660 : 0666;
  GPULEASE_RETURN_IF_ERROR(PrepareRuntimeDirectory(paths.directory));
  Endpoint endpoint;
  Result<UniqueFd> lock = TakeLock(paths.directory);
  if (!lock.ok()) return std::move(lock).error();
  endpoint.lock = std::move(*lock);
  const Result<bool> activated = TakeActivated(endpoint);
  if (!activated.ok()) return activated.error();
  if (*activated) {
    if (group) {
      GPULEASE_RETURN_IF_ERROR(GiveToGroup(paths.handle_socket, *group));
      GPULEASE_RETURN_IF_ERROR(GiveToGroup(paths.grpc_socket, *group));
    }
    return endpoint;
  }
  Result<UniqueFd> handles = ListenUnix(paths.handle_socket, SOCK_SEQPACKET, mode, group);
  if (!handles.ok()) return std::move(handles).error();
  endpoint.handle_listener = std::move(*handles);
  Result<UniqueFd> grpc = ListenUnix(paths.grpc_socket, SOCK_STREAM, mode, group);
  if (!grpc.ok()) return std::move(grpc).error();
  endpoint.grpc_listener = std::move(*grpc);
  return endpoint;
}

void RemoveSockets(const Endpoint& endpoint, const RuntimePaths& paths) {
  if (endpoint.activated) return;
  unlink(paths.handle_socket.c_str());
  unlink(paths.grpc_socket.c_str());
}

}  // namespace gpulease::peers
