// SPDX-License-Identifier: Apache-2.0
#include "daemon/ledger/wait_queue.h"

#include <algorithm>
#include <iterator>

namespace gpulease::ledger {
namespace {

bool HasHead(const TenantAccount* tenant) { return tenant->heads > 0; }

bool Compete(const Group& a, const Group& b) { return (a.wait->pools & b.wait->pools).any(); }

}  // namespace

void WaitQueue::Add(Group& group) {
  TenantAccount& tenant = *group.tenant;
  if (tenant.waiting.empty()) {
    // A tenant with a head has had its turn in this round; one without comes before those.
    const auto before =
        tenant.heads > 0 ? ring_.end() : std::find_if(ring_.begin(), ring_.end(), HasHead);
    tenant.in_ring = ring_.insert(before, &tenant);
  }
  group.wait->place = tenant.waiting.insert(tenant.waiting.end(), &group);
  group.wait->head = false;
}

void WaitQueue::AddFirst(Group& group) {
  group.wait->place = heads_.insert(heads_.begin(), &group);
  group.wait->head = true;
  group.tenant->heads += 1;
}

void WaitQueue::MakeHead(Group& group) {
  EndTurn(group);
  Remove(group);
  group.wait->place = heads_.insert(heads_.end(), &group);
  group.wait->head = true;
  group.tenant->heads += 1;
}

void WaitQueue::EndTurn(Group& group) {
  if (!group.tenant->waiting.empty()) ring_.splice(ring_.end(), ring_, group.tenant->in_ring);
}

void WaitQueue::Remove(Group& group) {
  if (group.wait->head) {
    heads_.erase(group.wait->place);
    group.wait->head = false;
    group.tenant->heads -= 1;
    return;
  }
  TenantAccount& tenant = *group.tenant;
  tenant.waiting.erase(group.wait->place);
  if (tenant.waiting.empty()) ring_.erase(tenant.in_ring);
}

std::uint32_t WaitQueue::Position(const Group& group) const {
  std::uint32_t before = 0;
  for (const Group* head : heads_) {
    if (head == &group) return before + 1;
    before += Compete(*head, group) ? 1 : 0;
  }
  std::size_t round = 0;
  for (const Group* other : group.tenant->waiting) {
    if (other == &group) break;
    ++round;
  }
  bool earlier = true;  // in the ring than the group's own tenant
  for (const TenantAccount* tenant : ring_) {
    if (tenant == group.tenant) earlier = false;
    std::size_t ahead = round + (earlier ? 1 : 0);
    for (auto other = tenant->waiting.begin(); other != tenant->waiting.end() && ahead > 0;
         ++other, --ahead) {
      before += Compete(**other, group) ? 1 : 0;
    }
  }
  return before + 1;
}

}  // namespace gpulease::ledger
