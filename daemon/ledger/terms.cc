// SPDX-License-Identifier: Apache-2.0
//
// The rules, changed while the ledger works.
#include "base/check.h"
#include "daemon/ledger/impl.h"

namespace gpulease::ledger {

void Ledger::Impl::SetTerms(const Terms& terms, Time now, Effects& effects) {
  GPULEASE_CHECK(terms.pools.size() == pools.size(), "terms for each pool");
  const std::uint64_t chunks = options.limits.chunks;
  options.limits = terms.limits;
  options.limits.chunks = chunks;
  for (PoolAccount& pool : pools) {
    pool.spec.headroom = terms.pools[pool.index].headroom;
    pool.spec.largest_chunk = terms.pools[pool.index].largest_chunk;
  }
  for (const TenantSpec& spec : terms.tenants) {
    if (const auto tenant = tenants.find(spec.name); tenant != tenants.end())
      tenant->second.spec = spec;
  }
  for (auto& [id, session] : sessions) {
    UserSpec& user = session.session.spec.user;
    user.administrator = terms.is_administrator(user);
    user.observer = terms.is_observer(user);
    session.session.spec.tenant = session.tenant->spec;
  }
  // Ends that are reckoned from the limits.
  bounds.clear();
  for (const auto& [id, record] : leases) {
    if (record.lease.state == State::kReleasing)
      bounds.emplace(After(record.lease.changed, options.limits.release_bound), id);
  }
  FailHopeless(effects);
  Serve(now, effects);
}

void Ledger::Impl::FailHopeless(Effects& effects) {
  std::vector<GroupId> waiting;
  for (const auto& [deadline, id] : waits) waiting.push_back(id);
  for (const GroupId id : waiting) {
    Group& group = groups.at(id);
    Request request;
    request.pieces = group.wait->pieces;
    request.pools = group.wait->pools;
    request.bytes = group.wait->bytes;
    request.parent = FindLease(group.leases.front()->lease.parent);
    if (Status ever = CheckEver(request, *group.tenant); !ever.ok())
      FailQueued(group, std::move(ever).error(), effects);
  }
}

}  // namespace gpulease::ledger
