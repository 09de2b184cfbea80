// SPDX-License-Identifier: Apache-2.0
//
// Elastic leases: they grow by leases that become a part of them, and shrink by what nobody has
// mapped any more.
#include <algorithm>
#include <utility>

#include "daemon/ledger/impl.h"

namespace gpulease::ledger {
namespace {

Status CheckElastic(const Lease& lease) {
  const std::string name = "lease " + std::to_string(lease.id.value);
  if (lease.reserved == 0) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     name + " keeps its size: allocate one with reserve_bytes to resize it");
  }
  if (lease.sealed) {
    return MakeError(Code::kFailedPrecondition, Reason::kSealed,
                     name + " is sealed, and keeps its size");
  }
  if (lease.state != State::kOffered && lease.state != State::kLeased) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                     name + " is not made, or its rights have ended");
  }
  if (lease.residence != Residence::kResident) return NotResident(std::to_string(lease.id.value));
  return {};
}

// Other sessions that have more than `chunks` of its chunks.
std::vector<SessionId> OthersWithMore(const Lease& lease, std::uint32_t chunks) {
  std::vector<SessionId> others;
  for (const Holding& holding : lease.holders) {
    if (holding.session != lease.owner && holding.chunks > chunks)
      others.push_back(holding.session);
  }
  return others;
}

bool MayCut(const Lease& lease) {
  const std::uint32_t left = OpenChunks(lease);
  return std::none_of(lease.holders.begin(), lease.holders.end(),
                      [&](const Holding& holding) { return holding.chunks > left; });
}

}  // namespace

Result<Resized> Ledger::Impl::Resize(const ResizeCommand& command, Time now, Effects& effects) {
  SessionRecord* session = FindSession(command.session);
  if (session == nullptr) return SessionEnded(command.session);
  LeaseRecord* record = FindLease(command.lease);
  if (record == nullptr || record->lease.owner != command.session || IsGrowth(record->lease))
    return NotTheCallers(command.lease);
  Lease& lease = record->lease;
  GPULEASE_RETURN_IF_ERROR(CheckElastic(lease));
  if (command.size == 0 || command.size > lease.reserved) {
    return BadField("size_bytes: asked " + std::to_string(command.size) + ", may be 1 to the " +
                    std::to_string(lease.reserved) + " that the lease has reserved");
  }
  if (command.wait < Duration::zero() || command.wait > options.limits.longest_wait)
    return BadField("wait: longer than the longest that is allowed, or negative");
  Holding* mine = FindHolding(*record, command.session);
  if (mine == nullptr) return NotOpenHere(lease.id);
  if (command.have_chunks > mine->chunks) return HasFewer(command.have_chunks, mine->chunks);

  const Bytes size = record->charge.pool()->Rounded(command.size).value_or(lease.reserved);
  const auto all = static_cast<std::uint32_t>(lease.chunks.size());
  if (const LeaseRecord* growth = FindLease(lease.growth)) {
    if (lease.size + growth->lease.size == size)
      return Resized{growth->lease.group, growth->lease.id, growth->lease.state, true};
    EndGrowth(*record, "another size was asked for", effects);
    Serve(now, effects);
  }
  if (size >= lease.size) {
    Resized answer;
    if (size > lease.size) {
      Result<Resized> grows = Grow(*record, command, size - lease.size, *session, now, effects);
      if (!grows.ok()) return grows;
      answer = *grows;
    }
    mine->chunks = all;
    if (lease.target == 0) return answer;
    // What was to go stays. Those who let go of it already are told.
    lease.target = 0;
    Note(lease.id);
    std::vector<SessionId> told;
    for (const Holding& holding : lease.holders) {
      if (holding.session != lease.owner) told.push_back(holding.session);
    }
    if (!told.empty()) Emit(EventType::kResized, *record, std::move(told), effects);
    return answer;
  }
  const Bytes before = std::exchange(lease.target, size);
  const std::uint32_t left = OpenChunks(lease);
  lease.target = 0;
  for (std::uint32_t i = 0; i < left; ++i) lease.target += lease.chunks[i];
  if (left == all) lease.target = 0;  // it would free no whole chunk
  mine->chunks = std::max(command.have_chunks, left);
  if (lease.target != before) Note(lease.id);
  if (lease.target == 0) return Resized{};
  if (MayCut(lease)) {
    Cut(*record, left, now, effects);
  } else if (lease.target != before) {
    std::vector<SessionId> told = OthersWithMore(lease, left);
    if (!told.empty()) Emit(EventType::kResized, *record, std::move(told), effects);
  }
  return Resized{};
}

Result<Resized> Ledger::Impl::Grow(LeaseRecord& record, const ResizeCommand& command, Bytes more,
                                   SessionRecord& session, Time now, Effects& effects) {
  if (stopping) {
    return MakeError(Code::kUnavailable, Reason::kStopping,
                     "the daemon is about to stop: retry when it is back");
  }
  const Lease& lease = record.lease;
  AllocationSpec spec;
  spec.kind = lease.kind;
  spec.pools = {lease.pool};
  spec.size = more;
  spec.alignment = lease.alignment;
  spec.mode = 0;
  spec.gid = lease.gid;
  spec.linger = lease.linger;
  Request request;
  request.parent = &record;
  request.pools.set(lease.pool);
  request.pieces.push_back({lease.kind, more, request.pools, false});
  Measure(request);
  const Result<Allocated> asked = Admit({command.session, {std::move(spec)}, command.wait, ""},
                                        std::move(request), session, now, effects);
  if (!asked.ok()) return asked.error();
  return Resized{asked->group, asked->leases.front(), asked->state, false};
}

void Ledger::Impl::EndGrowth(LeaseRecord& record, const std::string& why, Effects& effects) {
  LeaseRecord* growth = FindLease(std::exchange(record.lease.growth, LeaseId{}));
  if (growth == nullptr) return;
  Error error =
      MakeError(Code::kCancelled, Reason::kUnspecified,
                "lease " + std::to_string(record.lease.id.value) + " does not grow: " + why);
  if (growth->lease.state == State::kQueued) {
    FailQueued(*growth->group, std::move(error), effects);
  } else if (!growth->group->cancelled) {
    CancelMaking(*growth->group, std::move(error), effects);
  }
}

void Ledger::Impl::Merge(LeaseRecord& growth, Time now, Effects& effects) {
  LeaseRecord& record = *FindLease(growth.lease.parent);
  Lease& lease = record.lease;
  const auto first = static_cast<std::uint32_t>(lease.chunks.size());
  if (lease.residence == Residence::kResident) {
    lease.requested = lease.size + growth.lease.requested;
  } else {
    lease.residence = Residence::kResuming;
  }
  lease.chunks.insert(lease.chunks.end(), growth.lease.chunks.begin(), growth.lease.chunks.end());
  lease.size += growth.lease.size;
  lease.revision += 1;
  lease.grown = growth.lease.id;
  lease.grown_chunk = first;
  record.charge.Absorb(std::move(growth.charge));
  record.lasting += std::exchange(growth.lasting, 0);
  growth.lease.linger = {};
  // Its owner is given them with this.
  if (Holding* mine = FindHolding(record, lease.owner))
    mine->chunks = static_cast<std::uint32_t>(lease.chunks.size());
  Note(lease.id);

  Effect& merge = effects.emplace_back(Effect{.kind = Effect::Kind::kMerge});
  merge.lease = lease.id;
  merge.other = growth.lease.id;
  Effect& ready = effects.emplace_back(Effect{.kind = Effect::Kind::kReady});
  ready.group = growth.lease.group;
  ready.session = lease.owner;
  ready.lease = lease.id;
  ready.chunk = first;
  std::vector<SessionId> told;
  for (const SessionId holder : HolderSessions(record)) {
    // Its owner knows, unless he was told to wait; the others are told once he has filled it.
    if (holder == lease.owner ? growth.group->waited : lease.residence == Residence::kResident)
      told.push_back(holder);
  }
  if (!told.empty()) Emit(EventType::kResized, record, std::move(told), effects);
  EraseLease(growth, effects);
  // Its owner may have closed what he had suspended.
  SettleShrink(record, now, effects);
}

void Ledger::Impl::SettleShrink(LeaseRecord& record, Time now, Effects& effects) {
  const Lease& lease = record.lease;
  if ((lease.target == 0 && lease.residence == Residence::kResident) || lease.chunks.empty() ||
      lease.state < State::kOffered || lease.state >= State::kDestroying || !MayCut(lease))
    return;
  Cut(record, OpenChunks(lease), now, effects);
  if (FindHolding(record, lease.owner) != nullptr)
    Emit(EventType::kResized, record, {lease.owner}, effects);
}

void Ledger::Impl::Cut(LeaseRecord& record, std::uint32_t left, Time now, Effects& effects) {
  Lease& lease = record.lease;
  const GroupId group_id{FreshId()};
  Group& group = groups[group_id];
  group.id = group_id;
  group.state = State::kOffered;
  group.tenant = record.group->tenant;
  const LeaseId id{FreshId()};
  LeaseRecord& end = leases[id];
  group.leases = {&end};
  end.group = &group;
  end.user = record.user;
  end.user->leases += 1;
  end.exposed = record.exposed && (record.exposed_chunks == 0 || record.exposed_chunks > left);
  end.lease.id = id;
  end.lease.group = group_id;
  end.lease.parent = lease.id;
  end.lease.generation = lease.generation;
  end.lease.state = lease.state;
  end.lease.kind = lease.kind;
  end.lease.pool = lease.pool;
  end.lease.alignment = lease.alignment;
  end.lease.page_size = lease.page_size;
  end.lease.uid = lease.uid;
  end.lease.gid = lease.gid;
  end.lease.realm = lease.realm;
  end.lease.mode = 0;
  end.lease.owner_pid = lease.owner_pid;
  end.lease.tenant = lease.tenant;
  end.lease.created = now;
  end.lease.chunks.assign(lease.chunks.begin() + left, lease.chunks.end());
  for (const Bytes chunk : end.lease.chunks) end.lease.size += chunk;
  end.lease.requested = end.lease.size;
  end.charge = record.charge.Split(id, end.lease.size, end.lease.chunks.size());

  lease.chunks.resize(left);
  if (lease.residence != Residence::kResident) {
    lease.residence = Residence::kSuspended;
    lease.suspended = lease.size;
  } else {
    lease.requested = std::min(lease.requested, lease.size - end.lease.size);
  }
  lease.size -= end.lease.size;
  lease.target = 0;
  lease.revision += 1;
  if (lease.grown_chunk >= left) lease.grown = {};
  record.exposed = record.exposed && left > 0;
  record.exposed_chunks = std::min(record.exposed_chunks, left);
  if (record.lasting > 0) {
    record.user->lasting_bytes -= std::exchange(record.lasting, lease.size);
    record.user->lasting_bytes += record.lasting;
  }
  Note(lease.id);
  Effect& cut = effects.emplace_back(Effect{.kind = Effect::Kind::kCut});
  cut.lease = lease.id;
  cut.other = id;
  cut.chunk = left;
  StartDestroy(end, now, effects);
}

Result<std::uint32_t> Ledger::Impl::Refresh(SessionId session, LeaseId id,
                                            std::uint32_t have_chunks, Time now, Effects& effects) {
  if (FindSession(session) == nullptr) return SessionEnded(session);
  LeaseRecord* record = FindLease(id);
  Holding* holding = record == nullptr ? nullptr : FindHolding(*record, session);
  if (holding == nullptr) return NotOpenHere(id);
  if (have_chunks > holding->chunks) return HasFewer(have_chunks, holding->chunks);
  if (record->lease.residence == Residence::kSuspended && !record->lease.owner) {
    return MakeError(
        Code::kFailedPrecondition, Reason::kSuspended,
        "lease " + std::to_string(id.value) +
            ": its owner ended while it was suspended, its contents are gone: close it");
  }
  const std::uint32_t open = OpenChunks(record->lease, session);
  if (const std::uint32_t has = std::max(have_chunks, open); has != holding->chunks) {
    holding->chunks = has;
    Note(id);
  }
  SettleShrink(*record, now, effects);
  return open;
}

const Lease* Ledger::FindGrown(SessionId session, LeaseId growth) const {
  const SessionRecord* record = impl_->FindSession(session);
  if (record == nullptr || !growth) return nullptr;
  for (const LeaseId id : record->owned) {
    const Lease* lease = FindLease(id);
    if (lease != nullptr && lease->grown == growth) return lease;
  }
  return nullptr;
}

}  // namespace gpulease::ledger
