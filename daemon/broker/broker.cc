// SPDX-License-Identifier: Apache-2.0
#include "daemon/broker/broker.h"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace gpulease::broker {
namespace {

using ledger::Effect;
using ledger::Effects;
using ledger::GroupId;
using ledger::LeaseId;
using ledger::PoolIndex;
using ledger::SessionId;
using ledger::State;

ledger::Options LedgerOptions(const Options& options) {
  ledger::Options result;
  for (const Pool& pool : options.pools) result.pools.push_back(pool.spec);
  result.limits = options.limits;
  result.id_seed = options.id_seed;
  result.notes_changes = options.keeper != nullptr;
  return result;
}

Event::Type TypeOf(ledger::EventType type) {
  switch (type) {
    case ledger::EventType::kGranted:
      return Event::Type::kGranted;
    case ledger::EventType::kReleased:
      return Event::Type::kReleased;
    case ledger::EventType::kOwnerGone:
      return Event::Type::kOwnerGone;
    case ledger::EventType::kRevoked:
      return Event::Type::kRevoked;
    case ledger::EventType::kExpired:
      return Event::Type::kExpired;
    case ledger::EventType::kPoolState:
      return Event::Type::kGpuState;
    case ledger::EventType::kSealed:
      return Event::Type::kSealed;
    case ledger::EventType::kResized:
      return Event::Type::kResized;
    case ledger::EventType::kSuspending:
      return Event::Type::kSuspending;
    case ledger::EventType::kResumed:
      return Event::Type::kResumed;
    case ledger::EventType::kDeviceLost:
      return Event::Type::kDeviceLost;
  }
  return Event::Type::kGpuState;
}

// Text from a client, fit for a terminal and a log.
template <std::size_t N>
std::string Printable(const char (&text)[N]) {
  std::string result(text, strnlen(text, N));
  for (char& c : result) {
    if (!std::isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return result;
}

Error SessionEnded() {
  return MakeError(Code::kFailedPrecondition, Reason::kSessionEnded,
                   "the session is over or another process's: connect anew");
}

}  // namespace

Broker::Broker(Options options)
    : options_(std::move(options)),
      ledger_(LedgerOptions(options_)),
      release_bound_(options_.limits.release_bound),
      watches_(options_.pools.size()) {
  makers_ = std::make_unique<memory::Lane>("makers", 4, [] { return kNever; });
  hang_ups_ = std::make_unique<memory::HangUpWatch>([this](LeaseId lease) { LoseLease(lease); });
  for (PoolIndex i = 0; i < options_.pools.size(); ++i) {
    const Pool& pool = options_.pools[i];
    const bool device = pool.spec.kind == ledger::PoolKind::kDevice;
    if (device) {
      watches_[i].device =
          std::make_unique<memory::DeviceMemory>(options_.cuda, pool.gpu.ordinal, pool.gpu.uuid);
      watches_[i].ipc = std::make_unique<memory::IpcMemory>(options_.ipc, pool.gpu.uuid);
    }
    watches_[i].lane = std::make_unique<memory::Lane>(
        device ? "gpu" + std::to_string(pool.gpu.ordinal) : pool.spec.name, 1,
        [this, i, device] { return device ? ObserveDevice(i) : ObserveHost(i); });
  }
}

void Broker::Start() {
  // The first view: what others use already.
  for (PoolWatch& watch : watches_) watch.lane->ObserveAt(BootClock::now());
  std::vector<std::string> uuids;
  for (const Pool& pool : options_.pools) {
    if (pool.spec.kind == ledger::PoolKind::kDevice) uuids.push_back(pool.gpu.uuid);
  }
  if (!options_.nvml || uuids.empty() || options_.fatal_xids.empty()) return;
  Result<driver::XidEvents> events = driver::XidEvents::Open(options_.nvml, uuids);
  if (!events.ok()) {
    options_.report("Xid errors are not seen: " + events.error().message);
    return;
  }
  xid_events_ = std::move(*events);
  xid_listener_ = std::make_unique<memory::Lane>("xids", 1, [this] { return ListenForXids(); });
  xid_listener_->ObserveAt(BootClock::now());
}

Broker::~Broker() { StopLanes(std::chrono::seconds(1)); }

bool Broker::StopLanes(Duration bound) {
  // One bound for all of them, however many are stuck.
  const Time until = After(BootClock::now(), bound);
  const auto stop = [until](memory::Lane& lane) {
    return lane.Stop(std::max(until - BootClock::now(), Duration::zero()));
  };
  hang_ups_->Stop();
  bool all = stop(*makers_);
  for (PoolWatch& watch : watches_) all = stop(*watch.lane) && all;
  if (xid_listener_) all = stop(*xid_listener_) && all;
  return all;
}

// ------------------------------------------------------------------------------------------------
// effects

void Broker::Settle(Effects& effects) {
  for (const Effect& effect : effects) {
    // Who waited, or had it, and is told in a moment may ask before.
    if (effect.kind == Effect::Kind::kFailed)
      KeepFailure(effect.leases, {effect.session}, *effect.error);
    if (effect.kind == Effect::Kind::kEvent && effect.error)
      KeepFailure({effect.lease}, effect.sessions, *effect.error);
  }
  std::erase_if(effects, [this](const Effect& effect) {
    if (effect.kind == Effect::Kind::kMerge) {
      store_.Merge(effect.lease, effect.other);
    } else if (effect.kind == Effect::Kind::kCut) {
      store_.Cut(effect.lease, effect.chunk, effect.other);
    } else {
      return false;
    }
    return true;
  });
}

void Broker::KeepFailure(const std::vector<LeaseId>& leases, const std::vector<SessionId>& sessions,
                         const Error& error) {
  for (const LeaseId lease : leases) {
    for (const SessionId session : sessions) failures_.push_back({lease, session, error});
  }
  while (failures_.size() > kMostFailures) failures_.pop_front();
}

void Broker::Carry(Effects effects, GroupId inline_group) {
  // Before the keeper forgets who held it: a death is told twice rather than never.
  for (const Effect& effect : effects) {
    if (effect.kind == Effect::Kind::kDeathNotice) NoticeDeath(effect.lease);
  }
  // Before anybody is told: what he is told of outlives the daemon.
  Keep(effects);
  for (Effect& effect : effects) {
    switch (effect.kind) {
      case Effect::Kind::kMake:
        if (effect.group != inline_group) MakeOnLane(effect.group);
        break;
      case Effect::Kind::kReady:
        if (std::optional<Waiter> waiter = TakeWaiter(effect.group)) {
          waiter->done(effect.lease ? HandOverGrown(waiter->session, waiter->push_tag, effect.lease,
                                                    effect.chunk)
                                    : HandOver(waiter->session, waiter->push_tag, effect.group));
        }
        break;
      case Effect::Kind::kFailed:
        if (std::optional<Waiter> waiter = TakeWaiter(effect.group)) {
          waiter->done(*std::move(effect.error));
        }
        break;
      case Effect::Kind::kDestroy:
        Destroy(effect.lease, effect.pool);
        break;
      case Effect::Kind::kObserve:
        watches_[effect.pool].lane->ObserveAt(BootClock::now());
        break;
      case Effect::Kind::kMerge:
      case Effect::Kind::kCut:
        break;  // Settle did
      case Effect::Kind::kLoaded:
        TellReaders(effect.lease);
        break;
      case Effect::Kind::kForget:
        events_.End(effect.session);
        reception_->Forget(effect.session);
        break;
      case Effect::Kind::kEvent: {
        Event event;
        event.type = TypeOf(effect.event);
        event.lease_id = effect.lease.value;
        event.name = std::move(effect.name);
        event.message = std::move(effect.message);
        if (effect.pool != ledger::kNoPool) event.gpu_uuid = options_.pools[effect.pool].gpu.uuid;
        events_.Publish(std::move(event), effect.sessions);
        break;
      }
      case Effect::Kind::kDeathNotice:
        break;  // told above
    }
  }
  if (any_draining_) CheckDrained();
  TellDeadline();
}

void Broker::NoticeDeath(LeaseId lease) {
  const std::shared_ptr<const memory::LeaseMemory> memory = store_.Find(lease);
  if (!memory || memory->host.empty()) return;
  if (const Status told = memory->host.front().NoticeDeath(); !told.ok())
    options_.report("lease " + std::to_string(lease.value) + ": " + told.error().message);
}

void Broker::TellDeadline() {
  MutexLock lock(mutex_);
  const Time deadline = ledger_.NextDeadline();
  // One that is later is told when the one told before is over: a tick too many now and then costs
  // less than to wake the loop with every call.
  if (!deadline_changed_ || deadline >= told_deadline_) return;
  told_deadline_ = deadline;
  // Under the lock, so that of two the later one stands.
  deadline_changed_(deadline);
}

std::optional<Broker::Waiter> Broker::TakeWaiter(GroupId group) {
  MutexLock lock(mutex_);
  const auto found = waiters_.find(group);
  if (found == waiters_.end()) return std::nullopt;
  Waiter waiter = std::move(found->second);
  waiters_.erase(found);
  return waiter;
}

void Broker::Tick() {
  Effects effects;
  {
    MutexLock lock(mutex_);
    told_deadline_ = kNever;
    ledger_.Tick(BootClock::now(), effects);
    Settle(effects);
  }
  Carry(std::move(effects));
}

void Broker::SetTerms(const ledger::Terms& terms) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    release_bound_ = terms.limits.release_bound;
    ledger_.SetTerms(terms, BootClock::now(), effects);
    Settle(effects);
  }
  Carry(std::move(effects));
}

void Broker::KeepOut(std::optional<Error> reason) {
  MutexLock lock(mutex_);
  keep_out_ = std::move(reason);
}

void Broker::Stop() {
  Effects effects;
  std::map<GroupId, Waiter> waiters;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    ledger_.Stop(BootClock::now(), effects);
    Settle(effects);
  }
  Carry(std::move(effects));
  {
    MutexLock lock(mutex_);
    waiters.swap(waiters_);
  }
  for (auto& [group, waiter] : waiters) {
    waiter.done(Stopping());
  }
  StopReaders();
  Event event;
  event.type = Event::Type::kStopping;
  event.message = "the daemon is about to stop";
  events_.Publish(std::move(event), {});
}

// ------------------------------------------------------------------------------------------------
// sessions

ledger::SessionSpec Broker::SpecOf(const peers::Peer& peer) const {
  ledger::SessionSpec spec;
  spec.user = UserOf(peer);
  spec.pid = peer.pid;
  spec.process = peer.process;
  spec.tenant = options_.tenant_of(peer);
  spec.program = peer.program;
  return spec;
}

Result<peers::Registrar::Admitted> Broker::Admit(const peers::Peer& peer,
                                                 const handle::Hello& hello,
                                                 const Lifeline& lifeline) {
  Effects effects;
  Admitted admitted;
  std::optional<ledger::Session> session;
  {
    MutexLock lock(mutex_);
    const Time now = BootClock::now();
    if (stopping_) {
      return Stopping();
    }
    if (keep_out_) return *keep_out_;
    const SessionId resumed{hello.resume_session_id};
    if (resumed && ledger_.ResumeSession(resumed, peer.process, now).ok()) {
      admitted = {resumed, true};
    } else {
      ledger::SessionSpec spec = SpecOf(peer);
      if (std::string program = Printable(hello.program); !program.empty())
        spec.program = std::move(program);
      spec.client_version = Printable(hello.client_version);
      Result<SessionId> opened = ledger_.OpenSession(std::move(spec), now, effects);
      Settle(effects);
      if (!opened.ok()) return std::move(opened).error();
      admitted = {*opened, false};
    }
    session = *ledger_.FindSession(admitted.session);
  }
  KeepSession(*session, lifeline);
  Carry(std::move(effects));
  // While somebody is here the driver's view is kept fresh.
  const Time now = BootClock::now();
  for (PoolWatch& watch : watches_) {
    if (watch.device) watch.lane->ObserveAt(After(now, std::chrono::seconds(1)));
  }
  return admitted;
}

void Broker::Took(SessionId session, LeaseId lease, bool ok) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (ok) {
      ledger_.Take(session, lease, BootClock::now(), effects);
    } else {
      ledger_.Decline(session, lease, BootClock::now(), effects);
    }
    Settle(effects);
  }
  Carry(std::move(effects));
}

void Broker::LostConnection(SessionId session) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    ledger_.LoseConnection(session, BootClock::now(), effects);
    Settle(effects);
  }
  Carry(std::move(effects));
}

void Broker::Died(SessionId session) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    ledger_.EndSession(session, /*process_lives=*/false, BootClock::now(), effects);
    Settle(effects);
  }
  Carry(std::move(effects));
}

Status Broker::CheckSession(const peers::Peer& peer, SessionId session) const {
  MutexLock lock(mutex_);
  const ledger::Session* const found = ledger_.FindSession(session);
  if (found == nullptr || found->spec.process != peer.process) return SessionEnded();
  return {};
}

// ------------------------------------------------------------------------------------------------
// allocating

Result<Grant> Broker::Allocate(const peers::Peer& peer, std::uint64_t push_tag,
                               const ledger::AllocateCommand& command) {
  GPULEASE_RETURN_IF_ERROR(CheckSession(peer, command.session));
  if (reception_->FindSocket(command.session) == nullptr) {
    return MakeError(
        Code::kUnavailable, Reason::kHandOver,
        "the session has no handle socket now: nothing was leased; connect anew and retry");
  }
  Effects effects;
  Result<ledger::Allocated> allocated = ledger::Allocated();
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      return Stopping();
    }
    allocated = ledger_.Allocate(command, BootClock::now(), effects);
    Settle(effects);
  }
  if (!allocated.ok()) {
    Carry(std::move(effects));
    return std::move(allocated).error();
  }
  if (allocated->state == State::kQueued) {
    for (PoolWatch& watch : watches_) watch.lane->Hurry();
  }
  const bool make_here = !allocated->retry && allocated->state == State::kMaking;
  Carry(std::move(effects), make_here ? allocated->group : GroupId());
  if (make_here) GPULEASE_RETURN_IF_ERROR(MakeHere(allocated->group));
  Result<Grant> grant = HandOver(command.session, push_tag, allocated->group);
  if (!grant.ok()) {
    // A lane may have made it, and failed, meanwhile.
    MutexLock lock(mutex_);
    if (std::optional<Error> failure = FailureOf(command.session, allocated->leases.front()))
      return *std::move(failure);
  }
  // Who cannot ask again by request id would not know that he has it.
  if (!grant.ok() && command.request_id.empty()) {
    for (const LeaseId lease : allocated->leases) Took(command.session, lease, /*ok=*/false);
  }
  return grant;
}

std::uint64_t Broker::Await(const peers::Peer& peer, SessionId session, std::uint64_t push_tag,
                            LeaseId lease, GrantCallback done) {
  if (Status status = CheckSession(peer, session); !status.ok()) {
    done(std::move(status).error());
    return 0;
  }
  Result<ledger::Allocated> group = ledger::Allocated();
  LeaseId grown;
  std::uint32_t first = 0;
  std::optional<Waiter> replaced;
  std::uint64_t ticket = 0;
  {
    MutexLock lock(mutex_);
    group = ledger_.FindGroup(session, lease);
    if (stopping_) {
      group = Stopping();
    } else if (!group.ok()) {
      if (const ledger::Lease* const parent = ledger_.FindGrown(session, lease)) {
        grown = parent->id;
        first = parent->grown_chunk;
      }
      if (std::optional<Error> failure = FailureOf(session, lease)) group = *std::move(failure);
    }
    if (group.ok() && (group->state == State::kQueued || group->state == State::kMaking)) {
      ticket = next_ticket_++;
      Waiter& waiter = waiters_[group->group];
      if (waiter.ticket != 0) replaced = std::move(waiter);
      waiter = {ticket, session, push_tag, std::move(done)};
    }
  }
  if (replaced) {
    replaced->done(
        MakeError(Code::kAborted, Reason::kUnspecified, "another call awaits the same lease now"));
  }
  if (ticket != 0) return ticket;
  if (grown) {
    done(HandOverGrown(session, push_tag, grown, first));
  } else if (!group.ok()) {
    done(std::move(group).error());
  } else {
    done(HandOver(session, push_tag, group->group));
  }
  return 0;
}

void Broker::CancelAwait(std::uint64_t ticket) {
  GrantCallback done;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(waiters_.begin(), waiters_.end(), [&](const auto& entry) {
      return entry.second.ticket == ticket;
    });
    if (ticket == 0 || found == waiters_.end()) return;
    done = std::move(found->second.done);
    waiters_.erase(found);
  }
  done(MakeError(Code::kCancelled, Reason::kUnspecified,
                 "the call was cancelled; the lease still waits"));
}

// ------------------------------------------------------------------------------------------------
// open, close, release

Result<LeaseView> Broker::FinishOpen(SessionId session, std::uint64_t push_tag,
                                     Result<ledger::Opened> opened, Effects effects,
                                     ledger::Access access) {
  Carry(std::move(effects));
  if (!opened.ok()) return std::move(opened).error();
  std::optional<LeaseView> view;
  Parts parts;
  {
    MutexLock lock(mutex_);
    if (const ledger::Lease* const lease = ledger_.FindLease(opened->lease)) {
      parts = PartsOf(*lease, session);
      view = ViewOf(parts.lease);
    }
  }
  Status pushed = view ? Push(session, push_tag, parts, access)
                       : Status(MakeError(Code::kAborted, Reason::kHandOver,
                                          "the lease ended while it was opened"));
  if (pushed.ok()) return *std::move(view);
  // A failed Open undoes itself, and not the lease.
  if (!opened->already_open) static_cast<void>(CloseHolding(session, opened->lease).ok());
  return std::move(pushed).error();
}

Result<LeaseView> Broker::Open(const peers::Peer& peer, SessionId session, std::uint64_t push_tag,
                               LeaseId lease, ledger::Access access) {
  GPULEASE_RETURN_IF_ERROR(CheckSession(peer, session));
  Effects effects;
  Result<ledger::Opened> opened = ledger::Opened();
  {
    MutexLock lock(mutex_);
    opened = ledger_.Open(session, lease, access, BootClock::now(), effects);
    Settle(effects);
    if (!opened.ok()) opened = WhyOver(session, lease, std::move(opened).error());
  }
  return FinishOpen(session, push_tag, std::move(opened), std::move(effects), access);
}

Result<LeaseView> Broker::OpenByName(const peers::Peer& peer, SessionId session,
                                     std::uint64_t push_tag, const ledger::UserId& owner,
                                     std::string_view name, ledger::Access access) {
  GPULEASE_RETURN_IF_ERROR(CheckSession(peer, session));
  Effects effects;
  Result<ledger::Opened> opened = ledger::Opened();
  {
    MutexLock lock(mutex_);
    opened = ledger_.OpenByName(session, owner, name, access, BootClock::now(), effects);
    Settle(effects);
  }
  return FinishOpen(session, push_tag, std::move(opened), std::move(effects), access);
}

Status Broker::Close(const peers::Peer& peer, SessionId session, LeaseId lease) {
  GPULEASE_RETURN_IF_ERROR(CheckSession(peer, session));
  return CloseHolding(session, lease);
}

Status Broker::CloseHolding(SessionId session, LeaseId lease) {
  Effects effects;
  Status status;
  {
    MutexLock lock(mutex_);
    status = ledger_.Close(session, lease, BootClock::now(), effects);
    Settle(effects);
    if (!status.ok()) status = WhyOver(session, lease, std::move(status).error());
  }
  Carry(std::move(effects));
  return status;
}

Result<ledger::Released> Broker::Release(const peers::Peer& peer, SessionId session, LeaseId lease,
                                         bool force) {
  if (session) GPULEASE_RETURN_IF_ERROR(CheckSession(peer, session));
  const ledger::UserSpec caller = UserOf(peer);
  Effects effects;
  Result<ledger::Released> released = ledger::Released();
  {
    MutexLock lock(mutex_);
    released = ledger_.Release(session, caller, lease, force, BootClock::now(), effects);
    Settle(effects);
    if (!released.ok()) released = WhyOver(session, lease, std::move(released).error());
  }
  Carry(std::move(effects));
  return released;
}

}  // namespace gpulease::broker
