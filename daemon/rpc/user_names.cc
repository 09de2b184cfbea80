// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/user_names.h"

#include <pwd.h>

#include <array>
#include <charconv>

namespace gpulease::rpc {
namespace {

constexpr std::size_t kMost = 10'000;  // entries of about 100 bytes

}  // namespace

std::string UserNames::NameOf(std::uint32_t uid) {
  const Time now = BootClock::now();
  {
    MutexLock lock(mutex_);
    const auto found = names_.find(uid);
    if (found != names_.end() && now < found->second.until) return found->second.name;
  }
  // Outside the lock: a user database over a network can take its time.
  passwd entry{};
  passwd* result = nullptr;
  std::array<char, 4096> buffer;
  std::string name = std::to_string(uid);
  if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &result) == 0 && result != nullptr)
    name = result->pw_name;
  MutexLock lock(mutex_);
  if (names_.size() >= kMost) names_.clear();
  names_[uid] = {name, After(now, std::chrono::minutes(1))};
  return name;
}

std::optional<std::uint32_t> UserNames::IdOf(const std::string& name) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc() && end == name.data() + name.size()) return number;
  passwd entry{};
  passwd* result = nullptr;
  std::array<char, 4096> buffer;
  if (getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &result) != 0 ||
      result == nullptr) {
    return std::nullopt;
  }
  return result->pw_uid;
}

}  // namespace gpulease::rpc
