// SPDX-License-Identifier: Apache-2.0
#include "daemon/state/keeper_socket.h"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "base/descriptor_channel.h"

namespace gpulease::keeper {

bool WaitFor(int fd, short events, Time until) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - BootClock::now()).count();
    pollfd polled{fd, events, 0};
    const int n = poll(&polled, 1,
                       static_cast<int>(std::clamp<std::int64_t>(left, 0, std::int64_t{1} << 30)));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

Status SendPatiently(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                     Duration bound) {
  const Time until = After(BootClock::now(), bound);
  for (;;) {
    Status sent = SendMessage(socket, bytes, descriptors);
    if (sent.ok()) return sent;
    const bool full = sent.error().code == Code::kUnavailable && errno == EAGAIN;
    const bool too_many = sent.error().code == Code::kResourceExhausted;
    if ((!full && !too_many) || BootClock::now() >= until) return sent;
    // Too many descriptors on their way: there is no event for it, the other side is reading them.
    if (too_many) {
      poll(nullptr, 0, 1);
    } else {
      WaitFor(socket, POLLOUT, until);
    }
  }
}

std::uint32_t DescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<std::uint32_t>(std::min<rlim_t>(limit.rlim_cur, ~0u));
}

}  // namespace gpulease::keeper
