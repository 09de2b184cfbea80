// SPDX-License-Identifier: Apache-2.0
//
// Entry: what is kept under one key, and how it is cut into the protocol's parts and put together
// again. Both sides of keeper.sock use it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/state/keeper_protocol.h"

namespace gpulease::keeper {

struct Entry {
  std::string record;
  std::vector<UniqueFd> descriptors;
};

// One entry on its way out; `descriptors` are borrowed.
struct Outgoing {
  Kind kind = Kind::kPut;  // or kKept
  std::uint64_t key = 0;
  std::string_view record;
  std::span<const int> descriptors;
  bool same_descriptors = false;
};

// Cuts the entry into messages and gives each to `send` until one fails. Sets `sequence` of each,
// counting on from what it is.
//
// Errors: kInvalidArgument when it has more parts than kMaxParts; those of `send`.
Status SendEntry(
    const Outgoing& entry, std::uint64_t& sequence,
    const std::function<Status(std::span<const std::byte>, std::span<const int>)>& send);

// Puts parts together.
class Assembly {
 public:
  struct Complete {
    std::uint64_t key = 0;
    bool same_descriptors = false;
    Entry entry;
  };

  // Takes the next part. Nothing while more is to come.
  //
  // Errors: kInvalidArgument when it does not follow the last one: the sender is broken.
  Result<std::optional<Complete>> Add(const Part& part, std::span<const std::byte> record,
                                      std::vector<UniqueFd> descriptors);
  bool empty() const { return next_ == 0; }
  void Clear();

 private:
  std::uint64_t key_ = 0;
  std::uint32_t next_ = 0;  // 0: nothing begun
  std::uint32_t parts_ = 0;
  bool same_descriptors_ = false;
  Entry entry_;
};

}  // namespace gpulease::keeper
