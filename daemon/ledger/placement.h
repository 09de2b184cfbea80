// SPDX-License-Identifier: Apache-2.0
//
// Placement: which pool each lease of a group goes to.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "daemon/ledger/accounts.h"
#include "daemon/ledger/pool_account.h"

namespace gpulease::ledger {

// One pool a piece.
using Placement = std::vector<PoolIndex>;

// All pieces on usable pools that are not in `excluded`, each on the one with the most free memory;
// where that does not work out, the largest first and each where it fits most tightly. Empty when
// both fail.
std::optional<Placement> Place(const std::vector<Piece>& pieces,
                               const std::deque<PoolAccount>& pools, const PoolSet& excluded);
// The same as if nothing were leased and every pool usable.
bool CouldEverFit(const std::vector<Piece>& pieces, const std::deque<PoolAccount>& pools);
// Whether each piece has a usable pool.
bool Reachable(const std::vector<Piece>& pieces, const std::deque<PoolAccount>& pools);

}  // namespace gpulease::ledger
