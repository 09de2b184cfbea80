// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/transport/unix_socket.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace gpulease {
namespace {

std::string GroupName(gid_t gid) {
  group entry;
  group* found = nullptr;
  char buffer[4096];
  if (getgrgid_r(gid, &entry, buffer, sizeof buffer, &found) == 0 && found) return found->gr_name;
  return std::to_string(gid);
}

// What forbids the socket, as far as this process may see it.
Error Forbidden(const std::string& path, int error_number) {
  std::string message = "connect to " + path + ": " + std::strerror(error_number) + ": ";
  struct stat file;
  if (stat(path.c_str(), &file) != 0) {
    message += "a directory on the way is closed to this user; ask the administrator";
  } else {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(file.st_mode & 07777));
    message += std::string("the socket has mode ") + mode + " and group " + GroupName(file.st_gid) +
               ", this process is uid " + std::to_string(geteuid());
    if (access(path.c_str(), R_OK | W_OK) == 0) {
      message +=
          ", which the mode allows: a security module may forbid it (SELinux: ausearch -m avc "
          "-ts recent; AppArmor: dmesg)";
    } else {
      message +=
          ": join the group (usermod -aG " + GroupName(file.st_gid) + " USER) and log in anew";
    }
  }
  return MakeError(Code::kPermissionDenied, Reason::kUnspecified, std::move(message));
}

}  // namespace

Result<LocalFd> ConnectUnix(const std::string& path, int type) {
  LocalFd fd;
  {
    ForkHold hold;
    fd = LocalFd(UniqueFd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0)), hold);
  }
  if (!fd) return ErrnoError("socket for " + path, errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return MakeError(Code::kInvalidArgument, Reason::kBadField,
                     path + ": longer than a unix socket's address");
  }
  path.copy(address.sun_path, path.size());
  int result;
  do {
    result = connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return fd;
  const int error_number = errno;
  switch (error_number) {
    case EACCES:
    case EPERM:
      return Forbidden(path, error_number);
    case ENOENT:
    case ECONNREFUSED:
    case EAGAIN:
    case ENOTDIR:
    case ECONNRESET:
      return MakeError(Code::kUnavailable, Reason::kUnspecified,
                       "no daemon answers at " + path + " (" + std::strerror(error_number) +
                           "): is gpuleased running? systemctl status gpuleased; another place: "
                           "GPULEASE_RUNTIME_DIR");
    default:
      return ErrnoError("connect to " + path, error_number);
  }
}

}  // namespace gpulease
