// SPDX-License-Identifier: Apache-2.0
//
// UserNames: user ids to names and back, as the machine's user database has them, remembered for a
// minute.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"

namespace gpulease::rpc {

// Threads: any.
class UserNames {
 public:
  // The name, or the number where there is none.
  std::string NameOf(std::uint32_t uid);
  // Of a name or a number; empty when there is no such user.
  std::optional<std::uint32_t> IdOf(const std::string& name);

 private:
  struct Entry {
    std::string name;
    Time until{};
  };
  Mutex mutex_;
  std::map<std::uint32_t, Entry> names_ GPULEASE_GUARDED_BY(mutex_);
};

}  // namespace gpulease::rpc
