// SPDX-License-Identifier: Apache-2.0
#include "daemon/ledger/placement.h"

#include <algorithm>
#include <numeric>

namespace gpulease::ledger {
namespace {

enum class Choice { kMostFree, kTightest };

// The pool for `piece` among those with `room` bytes each, or kNoPool.
PoolIndex Choose(const Piece& piece, const std::deque<PoolAccount>& pools,
                 const std::vector<Bytes>& room, Choice choice) {
  PoolIndex best = kNoPool;
  for (const PoolAccount& pool : pools) {
    if (!piece.pools[pool.index]) continue;
    const std::optional<Bytes> size = pool.Rounded(piece.requested);
    if (!size || *size > room[pool.index]) continue;
    if (best == kNoPool || (choice == Choice::kMostFree ? room[pool.index] > room[best]
                                                        : room[pool.index] < room[best])) {
      best = pool.index;
    }
  }
  return best;
}

std::optional<Placement> PlaceInOrder(const std::vector<Piece>& pieces,
                                      const std::vector<std::size_t>& order,
                                      const std::deque<PoolAccount>& pools, std::vector<Bytes> room,
                                      Choice choice) {
  Placement placement(pieces.size(), kNoPool);
  for (const std::size_t index : order) {
    const PoolIndex pool = Choose(pieces[index], pools, room, choice);
    if (pool == kNoPool) return std::nullopt;
    placement[index] = pool;
    room[pool] -= *pools[pool].Rounded(pieces[index].requested);
  }
  return placement;
}

std::optional<Placement> PlaceWithin(const std::vector<Piece>& pieces,
                                     const std::deque<PoolAccount>& pools,
                                     const std::vector<Bytes>& room) {
  if (pieces.size() == 1) {
    const PoolIndex pool = Choose(pieces[0], pools, room, Choice::kMostFree);
    if (pool == kNoPool) return std::nullopt;
    return Placement{pool};
  }
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (auto placement = PlaceInOrder(pieces, order, pools, room, Choice::kMostFree))
    return placement;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return pieces[a].requested > pieces[b].requested;
  });
  if (auto placement = PlaceInOrder(pieces, order, pools, room, Choice::kTightest))
    return placement;
  // Those that have the fewest pools to choose from first: what may go anywhere goes around them.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return pieces[a].pools.count() < pieces[b].pools.count();
  });
  return PlaceInOrder(pieces, order, pools, room, Choice::kTightest);
}

}  // namespace

std::optional<Placement> Place(const std::vector<Piece>& pieces,
                               const std::deque<PoolAccount>& pools, const PoolSet& excluded) {
  std::vector<Bytes> room(pools.size(), 0);
  for (const PoolAccount& pool : pools) {
    if (pool.usable && !excluded[pool.index]) room[pool.index] = pool.Grantable();
  }
  return PlaceWithin(pieces, pools, room);
}

bool CouldEverFit(const std::vector<Piece>& pieces, const std::deque<PoolAccount>& pools) {
  std::vector<Bytes> room(pools.size(), 0);
  for (const PoolAccount& pool : pools) room[pool.index] = pool.Capacity();
  return PlaceWithin(pieces, pools, room).has_value();
}

bool Reachable(const std::vector<Piece>& pieces, const std::deque<PoolAccount>& pools) {
  return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    return std::any_of(pools.begin(), pools.end(), [&](const PoolAccount& pool) {
      return pool.usable && piece.pools[pool.index];
    });
  });
}

}  // namespace gpulease::ledger
