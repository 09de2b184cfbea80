// SPDX-License-Identifier: Apache-2.0
#include "base/unique_fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace gpulease {

void UniqueFd::Reset(int fd) {
  const int old = std::exchange(fd_, fd);
  if (old < 0) return;
  const int saved = errno;
  // Linux frees the number even when close() is interrupted; a retry could close somebody else's
  // file.
  close(old);
  errno = saved;
}

UniqueFd UniqueFd::Duplicate() const {
  return UniqueFd(fd_ < 0 ? -1 : fcntl(fd_, F_DUPFD_CLOEXEC, 3));
}

}  // namespace gpulease
