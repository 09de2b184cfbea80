// SPDX-License-Identifier: Apache-2.0
#include "base/unix_listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gpulease {
namespace {

Error Precondition(std::string message) {
  return MakeError(Code::kFailedPrecondition, Reason::kUnspecified, std::move(message));
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

// Removes what a dead daemon left at `path`.
Status ClearStale(const std::string& path, int type) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) {
    return errno == ENOENT ? Status() : ErrnoError("lstat " + path, errno);
  }
  if (!S_ISSOCK(status.st_mode))
    return Precondition(path + " is not a socket; it was left alone: move it away");
  UniqueFd probe(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return ErrnoError("socket", errno);
  const sockaddr_un address = AddressOf(path);
  const int connected =
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  if (connected == 0 || errno != ECONNREFUSED) {
    return Precondition(path + " is another program's living socket; it was left alone");
  }
  if (unlink(path.c_str()) != 0) return ErrnoError("unlink " + path, errno);
  return {};
}

}  // namespace

Status PrepareRuntimeDirectory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0755) == 0) {
    // The mode that was asked for, whatever the umask is.
    if (chmod(directory.c_str(), 0755) != 0) return ErrnoError("chmod " + directory, errno);
  } else if (errno != EEXIST) {
    return ErrnoError("mkdir " + directory, errno);
  }
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0) return ErrnoError("stat " + directory, errno);
  if (!S_ISDIR(status.st_mode)) return Precondition(directory + " is not a directory");
  if (status.st_uid != geteuid() && status.st_uid != 0) {
    return Precondition(
        directory + " belongs to uid " + std::to_string(status.st_uid) +
        ", who could replace the sockets; it must belong to root or to the daemon's user");
  }
  if ((status.st_mode & 0022) != 0) {
    return Precondition(directory +
                        " is writable by others, who could replace the sockets; chmod 0755 it");
  }
  return {};
}

Result<UniqueFd> ListenUnix(const std::string& path, int type, mode_t mode,
                            std::optional<gid_t> group) {
  GPULEASE_RETURN_IF_ERROR(ClearStale(path, type));
  UniqueFd listener(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return ErrnoError("socket", errno);
  // Nobody can connect before listen(), so that the mode below holds from the first connection on.
  const sockaddr_un address = AddressOf(path);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoError("bind " + path, errno);
  }
  if (group && chown(path.c_str(), static_cast<uid_t>(-1), *group) != 0)
    return ErrnoError("chown " + path, errno);
  if (chmod(path.c_str(), mode) != 0) return ErrnoError("chmod " + path, errno);
  if (listen(listener.get(), 4096) != 0) return ErrnoError("listen " + path, errno);
  return listener;
}

}  // namespace gpulease
