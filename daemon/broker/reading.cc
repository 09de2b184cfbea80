// SPDX-License-Identifier: Apache-2.0
//
// Broker: what callers are shown of the books.
#include "daemon/broker/broker.h"

namespace gpulease::broker {
namespace {

using ledger::LeaseId;
using ledger::PoolIndex;
using ledger::SessionId;
using ledger::State;

}  // namespace

Error NotVisible() {
  return MakeError(Code::kNotFound, Reason::kNotOpenable,
                   "no such lease, or none that you may see");
}

Error Stopping() {
  return MakeError(Code::kUnavailable, Reason::kStopping,
                   "the daemon is about to stop: retry when it is back");
}

LeaseView Broker::ViewOf(const ledger::Lease& lease) const {
  LeaseView view;
  view.lease = lease;
  view.target = lease.target;
  if (lease.ipc) {
    if (const std::shared_ptr<const memory::LeaseMemory> memory = store_.Find(lease.id)) {
      view.ipc_handle = memory->ipc_handle;
      view.ipc_offset = memory->ipc_offset;
    }
  }
  if (const ledger::Lease* const growth = ledger_.FindLease(lease.growth))
    view.target = lease.size + growth->size;
  if (lease.pool != ledger::kNoPool) {
    const Pool& pool = options_.pools[lease.pool];
    if (lease.kind == ledger::PoolKind::kDevice) {
      view.gpu_uuid = pool.gpu.uuid;
    } else {
      view.numa_node = pool.numa_node;
    }
  }
  return view;
}

ledger::UserSpec Broker::UserOf(const peers::Peer& peer) const {
  ledger::UserSpec user = peer.user;
  user.administrator = options_.is_administrator(user);
  user.observer = options_.is_observer(user);
  return user;
}

LeaseView Broker::FullViewOf(const ledger::Lease& lease, const ledger::UserSpec& viewer) const {
  LeaseView view = ViewOf(lease);
  // Who knows the handle may write.
  view.ipc_handle.clear();
  for (const ledger::Holding& holding : lease.holders) {
    HolderView holder;
    holder.holding = holding;
    holder.owner = holding.session == lease.owner;
    if (const ledger::Session* const session = ledger_.FindSession(holding.session)) {
      holder.pid = session->spec.pid;
      holder.uid = session->spec.user.uid;
      holder.realm = session->spec.user.realm;
      holder.program = session->spec.program;
    }
    view.holders.push_back(std::move(holder));
  }
  if (const ledger::Lease* const growth = ledger_.FindLease(lease.growth)) {
    view.queue_position = ledger_.QueuePosition(growth->group);
    view.blockers = ledger_.Blockers(growth->group, viewer);
  }
  if (lease.state == State::kQueued) {
    view.queue_position = ledger_.QueuePosition(lease.group);
    view.blockers = ledger_.Blockers(lease.group, viewer);
  }
  return view;
}

Result<LeaseView> Broker::GetLease(const peers::Peer& peer, LeaseId id) const {
  const ledger::UserSpec user = UserOf(peer);
  MutexLock lock(mutex_);
  const ledger::Lease* const lease = ledger_.FindLease(id);
  if (lease == nullptr || !ledger_.MaySee(user, *lease)) return NotVisible();
  return FullViewOf(*lease, user);
}

std::vector<LeaseView> Broker::ListLeases(
    const peers::Peer& peer, LeaseId after, std::size_t most,
    const std::function<bool(const LeaseView&)>& wanted) const {
  const ledger::UserSpec user = UserOf(peer);
  std::vector<LeaseView> views;
  MutexLock lock(mutex_);
  while (views.size() < most) {
    const std::vector<const ledger::Lease*> leases = ledger_.Leases(after, most);
    for (const ledger::Lease* const lease : leases) {
      after = lease->id;
      if (ledger::IsGrowth(*lease) || !ledger_.MaySee(user, *lease)) continue;
      LeaseView view = FullViewOf(*lease, user);
      if (wanted(view)) views.push_back(std::move(view));
      if (views.size() == most) break;
    }
    if (leases.size() < most) break;
  }
  return views;
}

std::vector<ledger::Session> Broker::ListSessions(const peers::Peer& peer, SessionId after,
                                                  std::size_t most) const {
  const bool all = IsObserver(peer);
  std::vector<ledger::Session> result;
  MutexLock lock(mutex_);
  while (result.size() < most) {
    const std::vector<const ledger::Session*> sessions = ledger_.Sessions(after, most);
    for (const ledger::Session* const session : sessions) {
      after = session->id;
      if (all || session->spec.user.id() == peer.user.id()) result.push_back(*session);
      if (result.size() == most) break;
    }
    if (sessions.size() < most) break;
  }
  return result;
}

BudgetView Broker::Budget(const peers::Peer& peer) const {
  const ledger::UserSpec user = UserOf(peer);
  const ledger::TenantSpec tenant = options_.tenant_of(peer);
  BudgetView view;
  view.tenant = tenant.name;
  MutexLock lock(mutex_);
  for (PoolIndex i = 0; i < options_.pools.size(); ++i) {
    const Pool& pool = options_.pools[i];
    PoolBudget& one = view.pools.emplace_back();
    one.kind = pool.spec.kind;
    if (pool.spec.kind == ledger::PoolKind::kDevice) {
      one.gpu_uuid = pool.gpu.uuid;
    } else {
      one.numa_node = pool.numa_node;
    }
    one.budget = ledger_.BudgetOf(i, user, tenant);
  }
  view.lasting = ledger_.LastingBytes(user);
  const Bytes limit = options_.limits.lasting_bytes_per_user;
  if (limit != ~Bytes{0}) view.lasting_left = limit > view.lasting ? limit - view.lasting : 0;
  return view;
}

PoolIndex Broker::FindGpu(std::string_view uuid) const {
  for (PoolIndex i = 0; i < options_.pools.size(); ++i) {
    if (options_.pools[i].spec.kind == ledger::PoolKind::kDevice &&
        options_.pools[i].gpu.uuid == uuid)
      return i;
  }
  return ledger::kNoPool;
}

}  // namespace gpulease::broker
