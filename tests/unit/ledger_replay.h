// SPDX-License-Identifier: Apache-2.0
//
// Replay: a day of traffic on a ledger, as a source of numbers has it: sessions that come, die and
// stop answering, an executor that is late and fails, a driver whose view moves.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/check.h"
#include "daemon/ledger/ledger.h"
#include "tests/unit/ledger_pools.h"

namespace gpulease::ledger {

inline Options ReplayOptions(std::uint64_t seed) {
  Options options;
  options.id_seed = seed;
  options.pools = {Gpu("GPU-0", 4 * kGiB, 64 * kMiB), Gpu("GPU-1", 3 * kGiB),
                   Gpu("GPU-2", 2 * kGiB), Node("numa0", 2 * kGiB), Node("numa1", kGiB)};
  for (PoolSpec& pool : options.pools) pool.largest_chunk = 64 * kMiB;
  options.pools[2].confirms_releases = false;
  options.limits.sessions_per_user = 8;
  options.limits.leases_per_user = 40;
  options.limits.waits_per_user = 10;
  options.limits.label_bytes_per_user = 1000;
  options.limits.lasting_bytes_per_user = 2 * kGiB;
  options.limits.chunks = 200;
  return options;
}

class Replay {
 public:
  // A number from 0 to one less than it is given.
  using Source = std::function<std::uint64_t(std::uint64_t)>;

  Replay(std::uint64_t seed, Source below)
      : below_(std::move(below)), ledger_(ReplayOptions(seed)) {
    pinned_.resize(ledger_.pool_count());
    outside_.resize(ledger_.pool_count());
  }

  void Step() {
    switch (Below(22)) {
      case 0:
        OpenSession();
        break;
      case 1:
        if (Below(3) == 0) EndSession();
        break;
      case 2:
        LoseOrResume();
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        Allocate();
        break;
      case 7:
      case 8:
        TakeOrDecline();
        break;
      case 9:
        OpenLease();
        break;
      case 10:
        if (Below(3) == 0) {
          SealOrClaim();
        } else if (const LeaseId lease = AnyLease())
          (void)ledger_.Close(SomeHolder(lease), lease, now_, effects_);
        break;
      case 11:
      case 12:
        Release();
        break;
      case 13:
        ResizeOrRefresh();
        break;
      case 14:
      case 15:
        Execute();
        break;
      case 20:
      case 21:
        SuspendOrResume();
        break;
      case 16:
      case 17:
        Observe();
        break;
      case 18:
        now_ += std::chrono::milliseconds(Below(400));
        if (Below(4) != 0) now_ = std::min(now_, ledger_.NextDeadline());
        ledger_.Tick(now_, effects_);
        break;
      default:
        if (Below(20) == 0) {
          const auto pool = static_cast<PoolIndex>(Below(ledger_.pool_count()));
          if (Below(10) == 0) {
            ledger_.LosePool(pool, "fell off the bus", now_, effects_);
          } else {
            ledger_.SetPoolUsable(pool, Below(3) != 0, "said so", now_, effects_);
          }
        } else if (Below(4) == 0) {
          if (const LeaseId lease = AnyLease())
            ledger_.LoseLease(lease, "its host ended", now_, effects_);
        } else if (Below(100) == 0) {
          SetTerms();
        } else {
          Execute();
        }
    }
    Collect();
  }

  // All sessions end, the executor catches up, the driver shows everything.
  void Finish() {
    while (!sessions_.empty()) EndSession();
    UserSpec root;
    root.administrator = true;
    for (const Lease* lease : ledger_.Leases({}, ~std::size_t{0}))
      GPULEASE_CHECK(
          lease->state >= State::kDestroying || IsOrphan(*lease) || lease->state == State::kMaking,
          "what is left lasts");
    std::vector<LeaseId> orphans;
    for (const Lease* lease : ledger_.Leases({}, ~std::size_t{0})) {
      if (IsOrphan(*lease)) orphans.push_back(lease->id);
    }
    for (const LeaseId lease : orphans)
      (void)ledger_.Release({}, root, lease, false, now_, effects_);
    for (int i = 0; i < 8; ++i) {
      Collect();
      while (!work_.empty()) Execute();
      outside_.assign(outside_.size(), 0);
      pinned_.assign(pinned_.size(), 0);
      for (PoolIndex pool = 0; pool < ledger_.pool_count(); ++pool) ObservePool(pool);
    }
    GPULEASE_CHECK(ledger_.lease_count() == 0, "leases are left");
    GPULEASE_CHECK(ledger_.session_count() == 0, "sessions are left");
    GPULEASE_CHECK(ledger_.chunk_count() == 0, "chunks are left");
    GPULEASE_CHECK(ledger_.Tenants().empty(), "tenants are left");
    for (PoolIndex pool = 0; pool < ledger_.pool_count(); ++pool) {
      const PoolUse use = ledger_.Use(pool);
      GPULEASE_CHECK(use.free == use.total - use.outside, "bytes are left");
      GPULEASE_CHECK(use.queued == 0, "somebody waits");
    }
    GPULEASE_CHECK(ledger_.NextDeadline() == kNever, "a deadline is left");
  }

  std::string Check() const { return ledger_.CheckInvariants(); }
  std::uint64_t grants() const { return grants_; }
  std::uint64_t queued() const { return queued_; }
  std::uint64_t expired() const { return expired_; }
  std::uint64_t shorts() const { return shorts_; }
  std::uint64_t resized() const { return resized_; }
  std::uint64_t growths_queued() const { return growths_queued_; }
  std::uint64_t merges() const { return merges_; }
  std::uint64_t cuts() const { return cuts_; }
  std::uint64_t pending() const { return pending_; }
  std::uint64_t suspended() const { return suspended_; }
  std::uint64_t resumed() const { return resumed_; }

 private:
  struct Work {
    GroupId group;  // to make
    LeaseId lease;  // to destroy
  };
  struct Client {
    SessionId id;
    std::uint64_t process;
  };

  std::uint64_t Below(std::uint64_t end) { return below_(end); }
  SessionId AnySession() {
    return sessions_.empty() ? SessionId{} : sessions_[Below(sessions_.size())].id;
  }
  LeaseId AnyLease() {
    const auto all = ledger_.Leases(LeaseId{Below(std::uint64_t{1} << 53)}, 1);
    return all.empty() ? LeaseId{} : all[0]->id;
  }
  SessionId SomeHolder(LeaseId lease) {
    const auto& holders = ledger_.FindLease(lease)->holders;
    return holders.empty() ? AnySession() : holders[Below(holders.size())].session;
  }

  void OpenSession() {
    SessionSpec spec;
    spec.user.uid = static_cast<std::uint32_t>(Below(6));
    spec.user.gid = static_cast<std::uint32_t>(Below(2));
    static const char* const kRealms[] = {"", "", "", "/a", "?1", "?2"};
    spec.user.realm = kRealms[Below(6)];
    spec.user.administrator = spec.user.uid == 0 && spec.user.realm.empty();
    spec.process = ++processes_;
    spec.tenant.name = "t" + std::to_string(Below(4));
    spec.tenant.device_limit = Below(2) * 3 * kGiB;
    spec.tenant.host_limit = Below(2) * kGiB;
    const Result<SessionId> id = ledger_.OpenSession(spec, now_, effects_);
    if (id.ok()) sessions_.push_back({*id, spec.process});
  }
  void EndSession() {
    if (sessions_.empty()) return;
    ledger_.EndSession(AnySession(), Below(2) == 0, now_, effects_);
    Collect();
  }
  void LoseOrResume() {
    if (sessions_.empty()) return;
    const Client& client = sessions_[Below(sessions_.size())];
    if (ledger_.FindSession(client.id)->connected) {
      if (Below(4) == 0) ledger_.LoseConnection(client.id, now_, effects_);
    } else {
      (void)ledger_.ResumeSession(client.id, client.process + Below(2), now_);
    }
  }
  void Allocate() {
    AllocateCommand command;
    command.session = AnySession();
    const std::uint64_t count = Below(8) == 0 ? 1 + Below(4) : 1;
    for (std::uint64_t i = 0; i < count; ++i) {
      AllocationSpec spec;
      spec.kind = Below(4) == 0 ? PoolKind::kHost : PoolKind::kDevice;
      spec.size = Below(50) == 0 ? ~Bytes{0} >> Below(40)
                                 : 1 + Below(Below(4) == 0 ? 2 * kGiB : 200 * kMiB);
      if (Below(2) == 0) {
        spec.pools = {
            static_cast<PoolIndex>(spec.kind == PoolKind::kHost ? 3 + Below(2) : Below(3))};
      }
      if (Below(8) == 0) spec.labels["k" + std::to_string(Below(4))] = std::string(Below(200), 'v');
      if (Below(6) == 0) spec.name = "n" + std::to_string(Below(20));
      spec.loading = Below(6) == 0;
      if (Below(6) == 0)
        spec.linger = Below(3) == 0 ? kForever : std::chrono::milliseconds(Below(3000));
      if (spec.kind == PoolKind::kDevice && spec.size < kGiB && Below(2) == 0)
        spec.reserve = spec.size + Below(2 * kGiB);
      spec.ipc = Below(8) == 0;
      spec.mode = static_cast<std::uint32_t>(Below(512)) & 0666;
      spec.gid = static_cast<std::uint32_t>(Below(2));
      command.specs.push_back(spec);
    }
    if (Below(2) == 0) command.wait = std::chrono::milliseconds(Below(5000));
    if (Below(4) == 0) command.request_id = "r" + std::to_string(Below(10));
    const Result<Allocated> answer = ledger_.Allocate(command, now_, effects_);
    if (!answer.ok()) return;
    if (answer->state == State::kQueued) ++queued_;
    for (const LeaseId lease : answer->leases)
      GPULEASE_CHECK(ledger_.FindLease(lease) != nullptr, "a lease that is answered exists");
  }
  void TakeOrDecline() {
    const LeaseId lease = AnyLease();
    if (!lease) return;
    if (Below(8) == 0) {
      ledger_.Decline(SomeHolder(lease), lease, now_, effects_);
    } else {
      ledger_.Take(SomeHolder(lease), lease, now_, effects_);
    }
  }
  void OpenLease() {
    const Access access = Below(2) == 0 ? Access::kReadOnly : Access::kReadWrite;
    if (Below(4) == 0) {
      (void)ledger_.OpenByName(AnySession(), static_cast<std::uint32_t>(Below(6)),
                               "n" + std::to_string(Below(20)), access, now_, effects_);
    } else {
      (void)ledger_.Open(AnySession(), AnyLease(), access, now_, effects_);
    }
  }
  void Release() {
    const LeaseId lease = AnyLease();
    if (!lease) return;
    const SessionId owner = ledger_.FindLease(lease)->owner;
    UserSpec caller;
    caller.administrator = Below(5) == 0;
    (void)ledger_.Release(caller.administrator ? SessionId{} : owner, caller, lease,
                          caller.administrator && Below(2) == 0, now_, effects_);
  }
  void SealOrClaim() {
    const LeaseId lease = AnyLease();
    if (!lease) return;
    if (Below(2) == 0) {
      const std::string tag(Below(50), 't');
      (void)ledger_.Seal(Below(8) == 0 ? AnySession() : ledger_.FindLease(lease)->owner, lease, tag,
                         std::make_shared<const std::string>(Below(100), 'd'), now_, effects_);
    } else {
      (void)ledger_.Claim(AnySession(), lease, now_, effects_);
    }
  }
  void ResizeOrRefresh() {
    // Leases that are elastic and made are few among all.
    LeaseId lease;
    for (int i = 0; i < 32 && !lease; ++i) {
      const LeaseId any = AnyLease();
      if (any && ledger_.FindLease(any)->reserved != 0 && !ledger_.FindLease(any)->holders.empty())
        lease = any;
    }
    if (!lease) return;
    const Lease before = *ledger_.FindLease(lease);
    const Holding& holding = before.holders[Below(before.holders.size())];
    const auto have = static_cast<std::uint32_t>(
        Below(3) == 0 ? Below(holding.chunks + 2) : std::min(holding.chunks, OpenChunks(before)));
    if (Below(3) == 0) {
      (void)ledger_.Refresh(holding.session, lease, have, now_, effects_);
      return;
    }
    ResizeCommand command{.session = before.owner ? before.owner : holding.session, .lease = lease};
    command.size = Below(20) == 0 ? Below(2) * ~Bytes{0} : 1 + Below(before.reserved);
    if (Below(4) == 0) command.size = before.size;
    for (const Holding& mine : before.holders) {
      if (mine.session == before.owner)
        command.have_chunks = static_cast<std::uint32_t>(Below(mine.chunks + 1));
    }
    if (Below(2) == 0) command.wait = std::chrono::milliseconds(Below(5000));
    const Result<Resized> answer = ledger_.Resize(command, now_, effects_);
    resized_ += answer.ok() ? 1 : 0;
    if (answer.ok() && answer->state == State::kQueued) ++growths_queued_;
    if (ledger_.FindLease(lease)->size < before.size) ++cuts_;
    if (ledger_.FindLease(lease)->target != 0) ++pending_;
  }
  void SuspendOrResume() {
    LeaseId lease;
    for (int i = 0; i < 32 && !lease; ++i) {
      const LeaseId any = AnyLease();
      if (!any) return;
      const Lease& found = *ledger_.FindLease(any);
      if (found.kind == PoolKind::kDevice && !found.holders.empty() && found.owner) lease = any;
      // Those that are on their way there are few among all.
      if (found.residence == Residence::kResident && Below(4) != 0) lease = {};
    }
    if (!lease) return;
    const Lease before = *ledger_.FindLease(lease);
    const Holding& holding = before.holders[Below(before.holders.size())];
    const auto have = static_cast<std::uint32_t>(Below(3) == 0 ? Below(holding.chunks + 2)
                                                               : Below(2) * holding.chunks);
    switch (Below(6)) {
      case 0:
        for (const Holding& other : before.holders) {
          if (Below(2) == 0) (void)ledger_.TakePart(other.session, lease);
        }
        break;
      case 1:
        (void)ledger_.Refresh(holding.session, lease, have, now_, effects_);
        break;
      case 2:
      case 3: {
        const bool suspended = ledger_.Suspend(before.owner, lease, have, now_, effects_).ok();
        suspended_ += suspended && ledger_.FindLease(lease)->size == 0 ? 1 : 0;
        break;
      }
      default: {
        ResumeCommand command{before.owner, lease, have, {}};
        if (Below(2) == 0) command.wait = std::chrono::milliseconds(Below(5000));
        (void)ledger_.Resume(command, now_, effects_);
        resumed_ += before.residence != Residence::kResident &&
                            ledger_.FindLease(lease)->residence == Residence::kResident
                        ? 1
                        : 0;
      }
    }
  }
  void SetTerms() {
    using std::chrono::milliseconds;
    Terms terms;
    terms.limits.session_grace = milliseconds(100 + Below(1000));
    terms.limits.release_bound = milliseconds(100 + Below(1000));
    terms.limits.driver_retry = milliseconds(Below(1000));
    terms.limits.leases_per_user = static_cast<std::uint32_t>(10 + Below(1000));
    for (int i = 0; i < 3; ++i) {
      terms.tenants.push_back(
          {"t" + std::to_string(Below(4)), Below(3) * 2 * kGiB, Below(2) * kGiB});
    }
    for (PoolIndex pool = 0; pool < ledger_.pool_count(); ++pool)
      terms.pools.push_back({Below(3) * 256 * kMiB, (1 + Below(4)) * 64 * kMiB});
    const bool one = Below(2) == 0;
    terms.is_administrator = [one](const UserSpec& user) {
      return user.uid == 0 || (one && user.uid == 1);
    };
    ledger_.SetTerms(terms, now_, effects_);
  }
  void Execute() {
    if (work_.empty()) return;
    const std::size_t index = Below(work_.size());
    const Work work = work_[index];
    work_.erase(work_.begin() + static_cast<std::ptrdiff_t>(index));
    if (work.lease) {
      const Lease* lease = ledger_.FindLease(work.lease);
      if (lease == nullptr) {  // lost with its GPU
        ledger_.Destroyed(work.lease, now_, effects_);
        return;
      }
      GPULEASE_CHECK(lease->state == State::kDestroying, "to be destroyed");
      if (lease->quarantined || Below(4) == 0) pinned_[lease->pool] += lease->size;
      ledger_.Destroyed(work.lease, now_, effects_);
      return;
    }
    for (const LeaseId lease : ledger_.GroupLeases(work.group))
      GPULEASE_CHECK(ledger_.FindLease(lease)->state == State::kMaking, "to be made");
    if (const std::uint64_t dice = Below(12); dice > 1) {
      ledger_.Made(work.group, PageSize::kSmall, now_, effects_);
    } else {
      shorts_ += dice == 0 ? 1 : 0;
      ledger_.MakeFailed(work.group,
                         MakeError(Code::kResourceExhausted,
                                   dice == 0 ? Reason::kDriverMemoryShort : Reason::kDriver, "no"),
                         now_, effects_);
    }
  }
  void ObservePool(PoolIndex pool) {
    if (ledger_.Pool(pool).kind == PoolKind::kHost) {
      for (const LeaseId lease : ledger_.LeasesToObserve(pool))
        ledger_.ObserveLease(lease, pinned_[pool] > 0 && Below(2) == 0, now_, effects_);
      return;
    }
    Bytes live = 0;
    for (const Lease* lease : ledger_.Leases({}, ~std::size_t{0})) {
      if (lease->pool == pool && lease->state >= State::kOffered &&
          lease->state <= State::kDestroying) {
        live += lease->size;
      }
    }
    ledger_.Observe(pool, live + pinned_[pool] + outside_[pool], now_, effects_);
  }
  void Observe() {
    const auto pool = static_cast<PoolIndex>(Below(ledger_.pool_count()));
    if (Below(2) == 0) pinned_[pool] = pinned_[pool] * Below(4) / 4;
    if (Below(10) == 0) outside_[pool] = Below(2) * Below(kGiB);
    ObservePool(pool);
  }
  // Takes over what the ledger wants done.
  void Collect() {
    for (const Effect& effect : effects_) {
      switch (effect.kind) {
        case Effect::Kind::kMake:
          ++grants_;
          work_.push_back({effect.group, {}});
          break;
        case Effect::Kind::kDestroy:
          work_.push_back({{}, effect.lease});
          break;
        case Effect::Kind::kForget:
          std::erase_if(sessions_, [&](const Client& c) { return c.id == effect.session; });
          break;
        case Effect::Kind::kFailed:
          GPULEASE_CHECK(effect.error.has_value(), "a failure says why");
          expired_ += effect.error->reason == Reason::kWaitOver ? 1 : 0;
          break;
        case Effect::Kind::kMerge:
          ++merges_;
          break;
        case Effect::Kind::kReady:
        case Effect::Kind::kCut:
        case Effect::Kind::kLoaded:
        case Effect::Kind::kObserve:
        case Effect::Kind::kEvent:
        case Effect::Kind::kDeathNotice:
          break;
      }
    }
    effects_.clear();
  }

  const Source below_;
  Ledger ledger_;
  Time now_{std::chrono::seconds(1000)};
  Effects effects_;
  std::vector<Client> sessions_;
  std::deque<Work> work_;
  std::vector<Bytes> pinned_;
  std::vector<Bytes> outside_;
  std::uint64_t processes_ = 0;
  std::uint64_t grants_ = 0, queued_ = 0, expired_ = 0, shorts_ = 0;
  std::uint64_t resized_ = 0, growths_queued_ = 0, merges_ = 0, cuts_ = 0, pending_ = 0;
  std::uint64_t suspended_ = 0, resumed_ = 0;
};

}  // namespace gpulease::ledger
