// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/order/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <limits>

namespace gpulease {

void Bell::Ring() {
  word_->fetch_add(kRing, std::memory_order_seq_cst);
  syscall(SYS_futex, word_, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

void Bell::Sleep(std::uint32_t seen, std::chrono::steady_clock::duration most) const {
  const auto count = std::chrono::duration_cast<std::chrono::nanoseconds>(most).count();
  if (count <= 0) return;
  timespec patience{};
  patience.tv_sec = static_cast<std::time_t>(count / 1'000'000'000);
  patience.tv_nsec = static_cast<long>(count % 1'000'000'000);
  syscall(SYS_futex, word_, FUTEX_WAIT, seen, &patience, nullptr, 0);
}

}  // namespace gpulease
