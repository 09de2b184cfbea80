// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/hand_over.h"

#include <algorithm>

namespace gpulease {

void HandOver::Promise(std::span<const wire::Lease> leases) {
  promised_.clear();
  for (const wire::Lease& lease : leases) promised_.push_back(lease.lease_id);
}

Result<std::vector<HandedLease>> HandOver::Collect(std::span<const wire::Lease> leases) {
  Promise(leases);
  auto handed = link_.handles->Collect(tag_, promised_, session_->CallDeadline());
  if (!handed.ok()) return std::move(handed).error();
  for (std::size_t i = 0; i < leases.size(); ++i) {
    Bytes sum = 0;
    for (const wire::Chunk& chunk : leases[i].chunks) sum += chunk.size_bytes;
    if ((*handed)[i].descriptors.size() != leases[i].chunks.size() || sum != leases[i].size_bytes ||
        sum == 0) {
      return MakeError(Code::kInternal, Reason::kHandOver,
                       "lease " + std::to_string(leases[i].lease_id) +
                           ": the daemon's descriptors do not match its chunks");
    }
  }
  promised_.clear();
  return handed;
}

Result<std::vector<LocalFd>> HandOver::CollectSome(std::uint64_t lease_id, std::size_t count) {
  const std::uint64_t leases[] = {lease_id};
  auto handed = link_.handles->Collect(tag_, leases, session_->CallDeadline());
  if (!handed.ok()) return std::move(handed).error();
  if (handed->front().descriptors.size() != count) {
    return MakeError(
        Code::kInternal, Reason::kHandOver,
        "lease " + std::to_string(lease_id) + ": the daemon handed over other chunks than it says");
  }
  return std::move(handed->front().descriptors);
}

void HandOver::GiveBack() {
  if (session_->inherited() || !link_.handles) return;
  for (std::uint64_t lease_id : link_.handles->Forget(tag_)) {
    if (std::find(promised_.begin(), promised_.end(), lease_id) == promised_.end()) {
      promised_.push_back(lease_id);
    }
  }
  for (std::uint64_t lease_id : promised_) {
    if (owner_ || !link_.handles->Holds(lease_id)) {
      session_->EndQuietly(lease_id, owner_, link_.epoch);
    }
  }
  promised_.clear();
}

}  // namespace gpulease
