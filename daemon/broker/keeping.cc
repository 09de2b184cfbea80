// SPDX-License-Identifier: Apache-2.0
//
// Broker: what outlives this process, told to the keeper as it changes, and taken up again.
#include <fcntl.h>

#include <array>
#include <cerrno>

#include "daemon/broker/broker.h"
#include "daemon/state/record.h"

namespace gpulease::broker {
namespace {

using ledger::Effect;
using ledger::Effects;
using ledger::LeaseId;
using ledger::PoolIndex;
using ledger::SessionId;
using state::KeyOf;
using state::RecordKind;

std::vector<int> DescriptorsOf(const memory::LeaseMemory& memory) {
  std::vector<int> descriptors;
  for (const auto& chunk : memory.device) descriptors.push_back(chunk->get());
  for (const memory::HostChunk& chunk : memory.host) descriptors.push_back(chunk.descriptor());
  return descriptors;
}

}  // namespace

void Broker::Keep(const Effects& effects) {
  if (!options_.keeper) return;
  for (const Effect& effect : effects) {
    if (effect.kind == Effect::Kind::kForget)
      options_.keeper->Erase(KeyOf(RecordKind::kSession, effect.session.value));
  }
  {
    MutexLock lock(mutex_);
    for (const LeaseId lease : ledger_.TakeChanges()) KeepLease(lease);
  }
  options_.keeper->Flush();
}

void Broker::KeepLease(LeaseId id) {
  if (!options_.keeper->connected()) return;  // told everything when it is back
  const std::uint64_t key = KeyOf(RecordKind::kLease, id.value);
  std::optional<ledger::RestoredLease> lease = ledger_.Keepable(id);
  if (!lease) {
    if (kept_.erase(id) > 0) options_.keeper->Erase(key);
    if (kept_directories_.erase(id) > 0)
      options_.keeper->Erase(KeyOf(RecordKind::kDirectory, id.value));
    return;
  }
  if (lease->aside) return;  // it stays as it was found
  if (lease->lease.directory && kept_directories_.insert(id).second) {
    options_.keeper->Put(KeyOf(RecordKind::kDirectory, id.value),
                         state::Encode(state::KeptDirectory{id, *lease->lease.directory}), {},
                         nullptr);
  }
  const std::string& pool = options_.pools[lease->lease.pool].spec.name;
  const std::uint32_t revision = lease->lease.revision;
  const std::shared_ptr<const memory::LeaseMemory> memory = store_.Find(id);
  if (!memory) return;
  std::string record = state::Encode(state::KeptLease{.lease = *std::move(lease),
                                                      .pool = pool,
                                                      .has_directory = false,
                                                      .ipc_handle = memory->ipc_handle,
                                                      .ipc_offset = memory->ipc_offset});
  const auto kept = kept_.find(id);
  if (kept != kept_.end() && kept->second == revision)
    return options_.keeper->PutRecord(key, std::move(record));
  options_.keeper->Put(key, std::move(record), DescriptorsOf(*memory), memory);
  kept_[id] = revision;
}

void Broker::KeepSession(const ledger::Session& session, const Lifeline& lifeline) {
  if (!options_.keeper || !options_.keeper->connected()) return;
  // Duplicates: the connection may be over before they are sent.
  auto own = std::make_shared<std::array<UniqueFd, 2>>();
  (*own)[0].Reset(fcntl(lifeline.socket, F_DUPFD_CLOEXEC, 0));
  (*own)[1].Reset(fcntl(lifeline.pidfd, F_DUPFD_CLOEXEC, 0));
  if (!(*own)[0] || !(*own)[1]) {
    options_.report("session " + std::to_string(session.id.value) +
                    " would not outlive the daemon: " + ErrnoError("dup", errno).message);
    return;
  }
  options_.keeper->Put(KeyOf(RecordKind::kSession, session.id.value),
                       state::Encode(state::KeptSession{session.id, session.spec.program,
                                                        session.spec.client_version}),
                       {(*own)[0].get(), (*own)[1].get()}, own);
  options_.keeper->Flush();
}

void Broker::KeepNode() {
  if (!options_.keeper) return;
  std::vector<state::RetiredGpu> retired;
  {
    MutexLock lock(mutex_);
    retired = retired_;
  }
  options_.keeper->Put(KeyOf(RecordKind::kNode, 0),
                       state::Encode(state::KeptNode{options_.instance, std::move(retired)}), {},
                       nullptr);
  options_.keeper->Flush();
}

void Broker::Refill() {
  options_.keeper->Reset();
  KeepNode();
  reception_->ForEachSession([this](SessionId id, const Lifeline& lifeline) {
    std::optional<ledger::Session> session;
    {
      MutexLock lock(mutex_);
      if (const ledger::Session* const found = ledger_.FindSession(id)) session = *found;
    }
    if (session) KeepSession(*session, lifeline);
  });
  {
    MutexLock lock(mutex_);
    kept_.clear();
    kept_directories_.clear();
    set_aside_ = 0;
    static_cast<void>(ledger_.TakeChanges());
    for (const ledger::Lease* lease : ledger_.Leases({}, ~std::size_t{0})) KeepLease(lease->id);
  }
  options_.keeper->Flush();
}

// ------------------------------------------------------------------------------------------------
// taking up

Restored Broker::Restore(std::vector<state::Kept> all, bool aside) {
  Restored restored;
  Effects effects;
  std::unordered_set<SessionId> unclear;
  std::vector<state::Kept*> leases;
  Directories directories;
  for (state::Kept& kept : all) {
    switch (static_cast<RecordKind>(kept.key >> 56)) {
      case RecordKind::kNode:
        break;
      case RecordKind::kSession:
        if (!aside) RestoreSession(kept, restored, unclear);
        break;
      case RecordKind::kDirectory:
        RestoreDirectory(kept, restored, directories);
        break;
      default:
        leases.push_back(&kept);
    }
  }
  // Sessions first: what belongs to those that are over ends with it.
  for (state::Kept* kept : leases)
    RestoreLease(*kept, aside, unclear, directories, restored, effects);
  Carry(std::move(effects));
  MutexLock lock(mutex_);
  set_aside_ = restored.broken.size();
  return restored;
}

void Broker::RestoreSession(state::Kept& kept, Restored& restored,
                            std::unordered_set<SessionId>& unclear) {
  const std::string name = "session " + std::to_string(kept.key & ~(0xffull << 56));
  const SessionId id{kept.key & ~(0xffull << 56)};
  const auto broken = [&](const std::string& why) {
    unclear.insert(id);
    restored.broken.push_back(name + ": " + why);
  };
  Result<state::Record> record = state::Decode(kept.key, kept.entry.record);
  if (!record.ok()) return broken(record.error().message);
  if (kept.entry.descriptors.size() != 2) return broken("it has not two descriptors");
  state::KeptSession& session = std::get<state::KeptSession>(*record);
  Result<peers::Peer> peer = reception_->Adopt(
      session.session, std::move(kept.entry.descriptors[0]), std::move(kept.entry.descriptors[1]));
  if (!peer.ok()) {
    if (peer.error().code != Code::kUnavailable) return broken(peer.error().message);
    ++restored.ended;
    options_.keeper->Erase(kept.key);
    return;
  }
  ledger::SessionSpec spec = SpecOf(*peer);
  spec.program = std::move(session.program);
  spec.client_version = std::move(session.client_version);
  Status status;
  {
    MutexLock lock(mutex_);
    status = ledger_.RestoreSession(session.session, std::move(spec), BootClock::now());
  }
  if (!status.ok()) {
    reception_->Forget(session.session);
    return broken(status.error().message);
  }
  ++restored.sessions;
}

void Broker::RestoreDirectory(state::Kept& kept, Restored& restored, Directories& directories) {
  Result<state::Record> record = state::Decode(kept.key, kept.entry.record);
  if (!record.ok()) {
    restored.broken.push_back("directory of lease " + std::to_string(kept.key & ~(0xffull << 56)) +
                              ": " + record.error().message);
    return;
  }
  auto& directory = std::get<state::KeptDirectory>(*record);
  directories[directory.lease] =
      std::make_shared<const std::string>(std::move(directory.directory));
}

void Broker::RestoreLease(state::Kept& kept, bool aside,
                          const std::unordered_set<SessionId>& unclear,
                          const Directories& directories, Restored& restored, Effects& effects) {
  const std::string name = "lease " + std::to_string(kept.key & ~(0xffull << 56));
  const auto broken = [&](const std::string& why) { restored.broken.push_back(name + ": " + why); };
  Result<state::Record> record = state::Decode(kept.key, kept.entry.record);
  if (!record.ok()) return broken(record.error().message);
  auto* const lease = std::get_if<state::KeptLease>(&*record);
  if (lease == nullptr) return broken("it is another kind of record");
  ledger::RestoredLease& found = lease->lease;
  for (PoolIndex i = 0; i < options_.pools.size(); ++i) {
    if (options_.pools[i].spec.name == lease->pool) found.lease.pool = i;
  }
  if (found.lease.pool == ledger::kNoPool)
    return broken(lease->pool + " is not there; its memory stays with the keeper");
  if (kept.entry.descriptors.size() != found.lease.chunks.size())
    return broken("its record and its descriptors do not agree");
  if (lease->has_directory) {
    const auto directory = directories.find(found.lease.id);
    if (directory == directories.end()) return broken("its directory is not there");
    found.lease.directory = directory->second;
  }
  const bool has_directory = lease->has_directory;

  auto memory = std::make_shared<memory::LeaseMemory>();
  memory->ipc_handle = std::move(lease->ipc_handle);
  memory->ipc_offset = lease->ipc_offset;
  if (found.lease.kind == ledger::PoolKind::kDevice) {
    // What is set aside is held by the keeper alone.
    for (UniqueFd& chunk : kept.entry.descriptors) {
      if (!aside) memory->device.push_back(std::make_shared<const UniqueFd>(std::move(chunk)));
    }
  } else {
    for (std::size_t i = 0; i < found.lease.chunks.size(); ++i) {
      Result<memory::HostChunk> chunk =
          memory::HostChunk::Adopt(std::move(kept.entry.descriptors[i]), found.lease.chunks[i]);
      if (!chunk.ok()) return broken(chunk.error().message);
      memory->host.push_back(std::move(*chunk));
    }
  }
  // Whose session cannot be had again lives on, perhaps, and may map it still.
  if (unclear.contains(found.lease.owner)) found.exposed = true;
  for (const ledger::Holding& holder : found.lease.holders) {
    if (unclear.contains(holder.session)) found.exposed = true;
  }
  const LeaseId id = found.lease.id;
  const std::string had_name = found.lease.name;
  const bool host = found.lease.kind == ledger::PoolKind::kHost;
  const bool ipc = found.lease.ipc;
  if (host || !aside) store_.Put(id, memory);
  Status status;
  {
    MutexLock lock(mutex_);
    kept_[id] = 0;
    if (has_directory) kept_directories_.insert(id);
    status = aside ? ledger_.SetAside(std::move(found), BootClock::now(), effects)
                   : ledger_.RestoreLease(std::move(found), BootClock::now(), effects);
    Settle(effects);
    if (status.ok() && ipc && !aside) WatchIpc(id);
    if (!status.ok()) {
      kept_.erase(id);
      kept_directories_.erase(id);
    }
    if (const ledger::Lease* const now = ledger_.FindLease(id);
        status.ok() && now != nullptr && now->name != had_name) {
      options_.report(name + " lost its name " + had_name + ": another lease has it by now");
    }
  }
  if (!status.ok()) {
    store_.Take(id);
    return broken(status.error().message);
  }
  ++(aside ? restored.aside : restored.leases);
  if (!host) return;
  makers_->Post([this, memory] {
    for (const memory::HostChunk& chunk : memory->host) {
      if (const Status locked = chunk.Lock(); !locked.ok()) options_.report(locked.error().message);
    }
  });
}

}  // namespace gpulease::broker
