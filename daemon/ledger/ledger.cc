// SPDX-License-Identifier: Apache-2.0
#include "daemon/ledger/ledger.h"

#include <utility>

#include "base/check.h"
#include "daemon/ledger/impl.h"

namespace gpulease::ledger {
Ledger::Impl::Impl(Options given) : options(std::move(given)), ids(options.id_seed) {
  GPULEASE_CHECK(options.pools.size() <= kMostPools, "more pools than it can count");
  for (const PoolSpec& spec : options.pools) {
    GPULEASE_CHECK(spec.granularity > 0, spec.name);
    PoolAccount& pool = pools.emplace_back();
    pool.spec = spec;
    pool.index = static_cast<PoolIndex>(pools.size() - 1);
  }
}

void Ledger::Impl::Verify() {
#ifndef NDEBUG
  // 64 leases are checked in microseconds; beyond, a check of all is spread over sixteen times as
  // many commands.
  constexpr std::size_t kFew = 64;
  constexpr std::uint64_t kSpread = 16;
  const std::size_t all = leases.size() + sessions.size();
  if (++unchecked < kSpread * all && all > kFew) return;
  unchecked = 0;
  const std::string wrong = CheckInvariants();
  GPULEASE_CHECK(wrong.empty(), wrong);
#endif
}

Ledger::Ledger(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Ledger::~Ledger() = default;

Result<SessionId> Ledger::OpenSession(SessionSpec spec, Time now, Effects& effects) {
  auto result = impl_->OpenSession(std::move(spec), now, effects);
  impl_->Verify();
  return result;
}

Status Ledger::ResumeSession(SessionId session, std::uint64_t process, Time) {
  auto status = impl_->ResumeSession(session, process);
  impl_->Verify();
  return status;
}

void Ledger::LoseConnection(SessionId session, Time now, Effects& effects) {
  impl_->LoseConnection(session, now, effects);
  impl_->Verify();
}

void Ledger::EndSession(SessionId session, bool process_lives, Time now, Effects& effects) {
  impl_->EndSession(session, process_lives, now, effects);
  impl_->Verify();
}

Result<Allocated> Ledger::Allocate(const AllocateCommand& command, Time now, Effects& effects) {
  auto result = impl_->Allocate(command, now, effects);
  impl_->Verify();
  return result;
}

bool Ledger::Made(GroupId group, PageSize page_size, Time now, Effects& effects) {
  const bool wanted = impl_->Made(group, page_size, now, effects);
  impl_->Verify();
  return wanted;
}

void Ledger::MakeFailed(GroupId group, const Error& error, Time now, Effects& effects) {
  impl_->MakeFailed(group, error, now, effects);
  impl_->Verify();
}

void Ledger::Take(SessionId session, LeaseId lease, Time now, Effects&) {
  impl_->Take(session, lease, now);
  impl_->Verify();
}

void Ledger::Decline(SessionId session, LeaseId lease, Time now, Effects& effects) {
  impl_->Decline(session, lease, now, effects);
  impl_->Verify();
}

Result<Opened> Ledger::Open(SessionId session, LeaseId lease, Access access, Time, Effects&) {
  auto result = impl_->Open(session, lease, access);
  impl_->Verify();
  return result;
}

Result<Opened> Ledger::OpenByName(SessionId session, const UserId& owner, std::string_view name,
                                  Access access, Time, Effects&) {
  auto result = impl_->OpenByName(session, owner, name, access);
  impl_->Verify();
  return result;
}

Status Ledger::Close(SessionId session, LeaseId lease, Time now, Effects& effects) {
  auto status = impl_->Close(session, lease, now, effects);
  impl_->Verify();
  return status;
}

Result<Released> Ledger::Release(SessionId session, const UserSpec& caller, LeaseId lease,
                                 bool force, Time now, Effects& effects) {
  auto result = impl_->Release(session, caller, lease, force, now, effects);
  impl_->Verify();
  return result;
}

void Ledger::Destroyed(LeaseId lease, Time now, Effects& effects) {
  impl_->Destroyed(lease, now, effects);
  impl_->Verify();
}

void Ledger::Observe(PoolIndex pool, Bytes used, Time now, Effects& effects) {
  impl_->Observe(pool, used, now, effects);
  impl_->Verify();
}

void Ledger::ObserveLease(LeaseId lease, bool in_use, Time now, Effects& effects) {
  impl_->ObserveLease(lease, in_use, now, effects);
  impl_->Verify();
}

void Ledger::SetPoolUsable(PoolIndex pool, bool usable, std::string_view message, Time now,
                           Effects& effects) {
  impl_->SetPoolUsable(pool, usable, message, now, effects);
  impl_->Verify();
}

void Ledger::LosePool(PoolIndex pool, std::string_view message, Time now, Effects& effects) {
  impl_->LosePool(pool, message, now, effects);
  impl_->Verify();
}
void Ledger::LoseLease(LeaseId lease, std::string_view message, Time now, Effects& effects) {
  impl_->LoseLease(lease, message, now, effects);
  impl_->Verify();
}

Status Ledger::Seal(SessionId session, LeaseId lease, std::string content_tag,
                    std::shared_ptr<const std::string> directory, Time, Effects& effects) {
  auto status = impl_->Seal(session, lease, std::move(content_tag), std::move(directory), effects);
  impl_->Verify();
  return status;
}

Result<Opened> Ledger::Claim(SessionId session, LeaseId lease, Time, Effects&) {
  auto result = impl_->Claim(session, lease);
  impl_->Verify();
  return result;
}

Result<Resized> Ledger::Resize(const ResizeCommand& command, Time now, Effects& effects) {
  auto result = impl_->Resize(command, now, effects);
  impl_->Verify();
  return result;
}

Result<std::uint32_t> Ledger::Refresh(SessionId session, LeaseId lease, std::uint32_t have_chunks,
                                      Time now, Effects& effects) {
  auto result = impl_->Refresh(session, lease, have_chunks, now, effects);
  impl_->Verify();
  return result;
}

Status Ledger::TakePart(SessionId session, LeaseId lease) {
  auto status = impl_->TakePart(session, lease);
  impl_->Verify();
  return status;
}

Status Ledger::Suspend(SessionId session, LeaseId lease, std::uint32_t have_chunks, Time now,
                       Effects& effects) {
  auto status = impl_->Suspend(session, lease, have_chunks, now, effects);
  impl_->Verify();
  return status;
}

Result<Resized> Ledger::Resume(const ResumeCommand& command, Time now, Effects& effects) {
  auto result = impl_->Resume(command, now, effects);
  impl_->Verify();
  return result;
}

void Ledger::SetTerms(const Terms& terms, Time now, Effects& effects) {
  impl_->SetTerms(terms, now, effects);
  impl_->Verify();
}

void Ledger::Tick(Time now, Effects& effects) {
  impl_->Tick(now, effects);
  impl_->Verify();
}

std::vector<LeaseId> Ledger::TakeChanges() { return impl_->TakeChanges(); }

std::optional<RestoredLease> Ledger::Keepable(LeaseId lease) const {
  return impl_->Keepable(lease);
}

Status Ledger::RestoreSession(SessionId session, SessionSpec spec, Time now) {
  auto status = impl_->RestoreSession(session, std::move(spec), now);
  impl_->Verify();
  return status;
}

Status Ledger::RestoreLease(RestoredLease lease, Time now, Effects& effects) {
  lease.aside = false;
  auto status = impl_->RestoreLease(std::move(lease), now, effects);
  impl_->Verify();
  return status;
}

Status Ledger::SetAside(RestoredLease lease, Time now, Effects& effects) {
  lease.aside = true;
  auto status = impl_->RestoreLease(std::move(lease), now, effects);
  impl_->Verify();
  return status;
}

void Ledger::Stop(Time now, Effects& effects) {
  impl_->Stop(now, effects);
  impl_->Verify();
}

}  // namespace gpulease::ledger
