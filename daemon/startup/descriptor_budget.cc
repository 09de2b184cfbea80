// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/descriptor_budget.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "daemon/peers/reception.h"

namespace gpulease::startup {
namespace {

constexpr std::uint32_t kLeast = 256;
constexpr std::uint32_t kMostConnections = 16'384;

}  // namespace

DescriptorBudget Divide(std::uint32_t limit) {
  constexpr std::uint32_t kEach = peers::Reception::kDescriptorsPerConnection;
  constexpr std::uint32_t kSpare = peers::Reception::kSpareConnections * kEach;
  DescriptorBudget budget;
  budget.limit = limit;
  const std::uint32_t own = std::max<std::uint32_t>(64, limit / 40) + (limit > 2048 ? kSpare : 0);
  const std::uint32_t rest = limit - own;
  budget.connections = std::min(rest / 20 * 9 / kEach, kMostConnections);
  budget.chunks = rest - budget.connections * kEach;
  return budget;
}

Result<DescriptorBudget> RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoError("getrlimit", errno);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoError("setrlimit", errno);
  const auto usable = static_cast<std::uint32_t>(std::min<rlim_t>(limit.rlim_cur, 1u << 30));
  if (usable < kLeast) {
    return MakeError(Code::kFailedPrecondition, Reason::kDescriptorLimit,
                     "the daemon may have only " + std::to_string(usable) +
                         " open files, and needs at least " + std::to_string(kLeast) +
                         "; raise LimitNOFILE= or ulimit -Hn");
  }
  return Divide(usable);
}

}  // namespace gpulease::startup
