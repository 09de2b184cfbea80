// SPDX-License-Identifier: Apache-2.0
//
// Shelf: the entries that the keeper holds, and how they pass from one run of the program to the
// next: written into a memfd, with their descriptors left open over exec.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/state/entry.h"

namespace gpulease::keeper {

struct Shelf {
  std::map<std::uint64_t, Entry> entries;
  std::uint32_t takes = 0;  // since the last Settled

  // Everything with `listener` and `connection` (may be empty), into a new memfd that stays open
  // over exec like all descriptors it names; `this` is unchanged. Errors: ErrnoError.
  Result<UniqueFd> Pack(const UniqueFd& listener, const UniqueFd& connection) const;
  // Undoes what Pack did to the descriptors, when exec failed.
  void KeepFromExec(const UniqueFd& listener, const UniqueFd& connection) const;
};

struct Unpacked {
  Shelf shelf;
  UniqueFd listener;
  UniqueFd connection;
};

// Errors: kDataLoss when it is not what Pack wrote.
Result<Unpacked> Unpack(UniqueFd packed);

}  // namespace gpulease::keeper
