// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/peer_table.h"

#include <charconv>

namespace gpulease::peers {

std::shared_ptr<const Peer> PeerTable::Find(std::string_view name) const {
  if (!name.starts_with("fd:")) return nullptr;
  name.remove_prefix(3);
  int descriptor = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), descriptor);
  if (error != std::errc()) return nullptr;
  MutexLock lock(mutex_);
  const auto found = peers_.find(descriptor);
  return found == peers_.end() ? nullptr : found->second;
}

}  // namespace gpulease::peers
