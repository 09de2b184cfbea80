// SPDX-License-Identifier: Apache-2.0
//
// WaitQueue: the order in which waiting groups are served.
//
// First the heads: those that were the first to find a pool short, in the order in which they were;
// a head stays one until it is served or ends, so that what comes later can never pass it. Then
// rounds over the tenants, first come first served within each; a tenant whose group became a head
// or was served has had its turn and goes to the end of the round.
//
// It decides nothing about memory: the Ledger walks it, says who is a head and takes out who is
// served.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "daemon/ledger/accounts.h"

namespace gpulease::ledger {

class WaitQueue {
 public:
  // Groups have a `wait`; they and their tenants outlive their time in the queue.
  void Add(Group& group);       // the last of its tenant
  void AddFirst(Group& group);  // before all others
  void MakeHead(Group& group);  // after the other heads; it was no head
  void EndTurn(Group& group);   // its tenant goes to the end of the round
  void Remove(Group& group);
  bool empty() const { return heads_.empty() && ring_.empty(); }
  // In order until `visit(group)` returns false; it must not change the queue.
  template <typename Visit>
  void Walk(Visit visit) const;
  // 1 for the first of those that want one of its pools.
  std::uint32_t Position(const Group& group) const;

 private:
  std::list<Group*> heads_;
  std::list<TenantAccount*> ring_;  // those with somebody waiting who is no head
};

template <typename Visit>
void WaitQueue::Walk(Visit visit) const {
  for (Group* group : heads_) {
    if (!visit(*group)) return;
  }
  struct Cursor {
    std::list<Group*>::const_iterator next, end;
  };
  std::vector<Cursor> cursors;
  cursors.reserve(ring_.size());
  for (const TenantAccount* tenant : ring_) {
    cursors.push_back({tenant->waiting.begin(), tenant->waiting.end()});
  }
  while (!cursors.empty()) {
    std::size_t kept = 0;
    for (Cursor cursor : cursors) {
      if (!visit(**cursor.next)) return;
      if (++cursor.next != cursor.end) cursors[kept++] = cursor;
    }
    cursors.resize(kept);
  }
}

}  // namespace gpulease::ledger
