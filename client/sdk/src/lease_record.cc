// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/lease_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <utility>

#include "client/sdk/src/order/publication.h"

namespace gpulease {
namespace {

constexpr Bytes kHugePage = 2 * kMiB;

// The holds of this process: by session object, epoch and lease.
struct LeaseTable {
  struct Key {
    const Session* session;
    std::uint64_t epoch;
    std::uint64_t lease_id;
    auto operator<=>(const Key&) const = default;
  };
  std::mutex mutex;
  std::condition_variable ended;
  std::map<Key, std::shared_ptr<LeaseHold>> holds;  // under mutex
};

// A new one in each process of a fork: the mutex of the old one may be locked for ever.
LeaseTable& Table() {
  static std::atomic<LeaseTable*> table{nullptr};
  static std::atomic<std::uint64_t> generation{0};
  static std::mutex* const making = new std::mutex;
  LeaseTable* current = table.load();
  if (current && generation.load() == ForkGeneration()) return *current;
  std::lock_guard lock(*making);
  if (generation.load() != ForkGeneration()) {
    table = new LeaseTable;
    generation = ForkGeneration();
  }
  return *table.load();
}

}  // namespace

inline namespace abi_v1 {

MappedRange::~MappedRange() {
  if (!record) return;
  if (record->session()->inherited()) {
    if (device) device->Disown();
    if (host) host->Disown();
    if (ipc) ipc->Disown();
    return;
  }
  LeaseHold& hold = record->hold();
  if (hold.device) {
    std::lock_guard lock(hold.mutex);
    std::erase(hold.live, this);
  }
  device.reset();
  host.reset();
  ipc.reset();
  --hold.ranges;
}

std::shared_ptr<LeaseRecord> LeaseRecord::Make(std::shared_ptr<Session> session,
                                               std::uint64_t epoch, wire::Lease lease,
                                               HandedLease handed, bool owned, Access access) {
  LeaseTable& table = Table();
  std::unique_lock lock(table.mutex);
  std::shared_ptr<LeaseHold>& slot = table.holds[{session.get(), epoch, lease.lease_id}];
  if (slot && slot->ending) {
    const std::shared_ptr<LeaseHold> ending = slot;
    table.ended.wait(lock, [&] { return !ending->ending; });
    return nullptr;
  }
  if (!slot) {
    slot = std::make_shared<LeaseHold>();
    slot->lease_id = lease.lease_id;
    slot->epoch = epoch;
  }
  ++slot->records;
  if (lease.kind == wire::MemoryKind::kDevice) {
    std::lock_guard memory(slot->mutex);
    // What another record of it has already is the same memory.
    if (!slot->device.exchange(true)) {
      slot->size = lease.size_bytes;
      slot->requested = lease.requested_bytes;
      slot->descriptors = std::move(handed.descriptors);
      for (const wire::Chunk& chunk : lease.chunks) slot->chunks.push_back(chunk.size_bytes);
    }
    handed.descriptors.clear();
  }
  if (owned) slot->owned = true;
  std::shared_ptr<LeaseRecord> record(new LeaseRecord);
  record->session_ = std::move(session);
  record->hold_ = slot;
  record->lease_ = std::move(lease);
  record->handed_ = std::move(handed);
  record->access_ = access;
  return record;
}

void LeaseRecord::Attach(std::unique_ptr<Publication> order) { order_ = std::move(order); }

LeaseRecord::~LeaseRecord() {
  if (!hold_ || session_->inherited()) {
    // The hold's mutex may be locked for ever in this process.
    if (hold_) new std::shared_ptr<LeaseHold>(std::move(hold_));
    return;
  }
  // Before the daemon hears of it, so that the memory is free when it does.
  handed_.descriptors.clear();
  LeaseTable& table = Table();
  {
    std::lock_guard lock(table.mutex);
    if (--hold_->records > 0) return;
    hold_->ending = true;
  }
  hold_->descriptors.clear();
  hold_->room.reset();
  // What lasts is left to others; what was not filled to its end is not.
  const bool lasts =
      (lease_.persistent || lease_.linger_ms > 0) && (lease_.sealed || !lease_.loading);
  if (!hold_->ended) session_->EndQuietly(hold_->lease_id, hold_->owned && !lasts, hold_->epoch);
  std::lock_guard lock(table.mutex);
  hold_->ending = false;
  table.holds.erase({session_.get(), hold_->epoch, hold_->lease_id});
  table.ended.notify_all();
}

std::string LeaseRecord::Subject() const {
  std::string subject = "lease " + std::to_string(lease_.lease_id);
  if (!lease_.name.empty()) subject += " (" + lease_.name + ")";
  return subject;
}

Status LeaseRecord::Usable() const {
  GPULEASE_RETURN_IF_ERROR(session_->ok());
  if (hold_->ended) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                     Subject() + " was released or closed before");
  }
  if (hold_->epoch != session_->epoch()) {
    return MakeError(Code::kFailedPrecondition, Reason::kSessionEnded,
                     "the daemon was restarted, or ended the session; " + Subject() +
                         " of the former session is gone: allocate or open it anew");
  }
  return {};
}

Result<std::shared_ptr<MappedRange>> LeaseRecord::Map(const std::shared_ptr<LeaseRecord>& self,
                                                      const MapOptions& options) {
  return MapRange(self, options, false);
}

Result<std::shared_ptr<MappedRange>> LeaseRecord::MapPlain(
    const std::shared_ptr<LeaseRecord>& self) {
  return MapRange(self, {}, true);
}

Result<std::shared_ptr<MappedRange>> LeaseRecord::MapRange(const std::shared_ptr<LeaseRecord>& self,
                                                           const MapOptions& options, bool plain) {
  GPULEASE_RETURN_IF_ERROR(Usable());
  GPULEASE_RETURN_IF_ERROR(NotAway());
  const Access access = options.access.value_or(access_);
  if (access == Access::kReadWrite && access_ == Access::kReadOnly) {
    return MakeError(Code::kPermissionDenied, Reason::kNotOpenable,
                     Subject() + " was opened for reading: open it with Access::kReadWrite");
  }
  // Goes after the lock, which its end may take.
  std::shared_ptr<MappedRange> known;
  auto range = std::make_shared<MappedRange>();
  std::lock_guard lock(hold_->mutex);
  std::weak_ptr<MappedRange>& slot = hold_->mapped[static_cast<int>(access)];
  // One mapping serves all, unless this one asks for something of its own.
  known = slot.lock();
  const bool registers =
      options.register_with_cuda && known && known->host && known->host->device_address() == 0;
  if (known && options.peer_gpu_uuids.empty() && !registers) return known;
  range->access = access;
  if (lease_.kind == wire::MemoryKind::kHost) {
    GPULEASE_RETURN_IF_ERROR(MapHost(*range));
    if (!plain) GPULEASE_RETURN_IF_ERROR(RegisterHost(options, *range));
  } else {
    GPULEASE_RETURN_IF_ERROR(MapDevice(options, *range));
  }
  range->record = self;
  ++hold_->ranges;
  if (hold_->device) hold_->live.push_back(range.get());
  slot = range;
  return range;
}

std::vector<DeviceChunk> LeaseRecord::DeviceChunks() const {
  std::vector<DeviceChunk> chunks;
  for (std::size_t i = 0; i < hold_->chunks.size(); ++i)
    chunks.push_back({hold_->descriptors[i].get(), hold_->chunks[i]});
  return chunks;
}

std::vector<Bytes> LeaseRecord::chunk_sizes() const {
  if (hold_->device) {
    std::lock_guard lock(hold_->mutex);
    return hold_->chunks;
  }
  std::vector<Bytes> sizes;
  for (const wire::Chunk& chunk : lease_.chunks) sizes.push_back(chunk.size_bytes);
  return sizes;
}

Status LeaseRecord::MapIpc(const MapOptions& options, MappedRange& range) {
  if (!options.peer_gpu_uuids.empty()) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     Subject() +
                         " is opened by its IPC handle, for its own GPU: enable peer access "
                         "to that context (cuCtxEnablePeerAccess) in place of peer_gpu_uuids");
  }
  auto process = CudaProcess::Get(Choice());
  if (!process.ok()) return WithContext("map " + Subject(), std::move(process).error());
  const Result<int> ordinal = (*process)->VisibleOrdinal(lease_.gpu_uuid);
  if (!ordinal.ok()) return WithContext("map " + Subject(), ordinal.error());
  range.ordinal = *ordinal;
  auto opened =
      IpcRange::Open(std::move(*process), {.subject = Subject() + " on " + lease_.gpu_uuid,
                                           .ordinal = *ordinal,
                                           .handle = lease_.ipc_handle,
                                           .offset = lease_.ipc_offset_bytes});
  if (!opened.ok()) return std::move(opened).error();
  range.ipc.emplace(std::move(*opened));
  return {};
}

Status LeaseRecord::MapDevice(const MapOptions& options, MappedRange& range) {
  if (!session_->options().use_cuda) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     Subject() + " is GPU memory, and this Client was made with use_cuda = false");
  }
  if (lease_.ipc) return MapIpc(options, range);
  auto process = CudaProcess::Get(Choice());
  if (!process.ok()) return WithContext("map " + Subject(), std::move(process).error());
  std::vector<std::string> uuids = {lease_.gpu_uuid};
  uuids.insert(uuids.end(), options.peer_gpu_uuids.begin(), options.peer_gpu_uuids.end());
  std::vector<int> ordinals;
  for (const std::string& uuid : uuids) {
    Result<int> ordinal = (*process)->VisibleOrdinal(uuid);
    if (!ordinal.ok()) return WithContext("map " + Subject(), std::move(ordinal).error());
    ordinals.push_back(*ordinal);
  }
  range.ordinal = ordinals.front();
  const std::vector<DeviceChunk> chunks = DeviceChunks();
  auto mapped =
      DeviceRange::Map(std::move(*process), {.subject = Subject() + " on " + lease_.gpu_uuid,
                                             .chunks = chunks,
                                             .alignment = lease_.alignment_bytes,
                                             .reserve = lease_.reserved_bytes,
                                             .read_only = range.access == Access::kReadOnly,
                                             .ordinals = std::move(ordinals)});
  if (!mapped.ok()) return std::move(mapped).error();
  range.device.emplace(std::move(*mapped));
  return {};
}

Status LeaseRecord::MapHost(MappedRange& range) {
  std::vector<HostChunk> chunks;
  for (std::size_t i = 0; i < lease_.chunks.size(); ++i) {
    chunks.push_back({handed_.descriptors[i].get(), lease_.chunks[i].size_bytes});
  }
  const bool huge = lease_.page_size == wire::PageSize::kHuge;
  const Bytes page = huge ? kHugePage : static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  auto mapped = HostRange::Map({.subject = Subject(),
                                .chunks = chunks,
                                .alignment = std::max(lease_.alignment_bytes, page),
                                .read_only = range.access == Access::kReadOnly});
  if (!mapped.ok()) return std::move(mapped).error();
  range.host.emplace(std::move(*mapped));
  return {};
}

Status LeaseRecord::RegisterHost(const MapOptions& options, MappedRange& range) {
  const driver::DriverChoice choice = Choice();
  const bool wanted = options.register_with_cuda;
  if (!wanted && (!session_->options().use_cuda || !CudaProcess::ThreadHasContext(choice))) {
    return {};
  }
  auto process = CudaProcess::Get(choice);
  if (!process.ok()) return WithContext("register " + Subject(), std::move(process).error());
  Status registered = range.host->Register(std::move(*process), 0, Subject());
  // Not every GPU registers read-only memory; who did not ask for it does without.
  if (!registered.ok() && !wanted && range.access == Access::kReadOnly) return {};
  return registered;
}

Result<std::vector<int>> LeaseRecord::Duplicate() const {
  GPULEASE_RETURN_IF_ERROR(Usable());
  GPULEASE_RETURN_IF_ERROR(NotAway());
  std::vector<UniqueFd> duplicates;
  std::unique_lock lock(hold_->mutex, std::defer_lock);
  if (hold_->device) lock.lock();
  for (const LocalFd& fd : hold_->device ? hold_->descriptors : handed_.descriptors) {
    UniqueFd duplicate(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!duplicate) return ErrnoError("duplicate a descriptor of " + Subject(), errno);
    duplicates.push_back(std::move(duplicate));
  }
  std::vector<int> given;
  for (UniqueFd& duplicate : duplicates) given.push_back(duplicate.Release());
  return given;
}

Status LeaseRecord::Seal(std::string_view content_tag, std::span<const DirectoryEntry> directory) {
  GPULEASE_RETURN_IF_ERROR(Usable());
  wire::SealRequest request;
  request.lease_id = lease_.lease_id;
  request.content_tag = std::string(content_tag);
  if (!directory.empty()) {
    wire::Directory entries;
    for (const DirectoryEntry& entry : directory) {
      entries.entries.push_back({.name = entry.name,
                                 .offset_bytes = entry.offset_bytes,
                                 .size_bytes = entry.size_bytes,
                                 .shape = entry.shape,
                                 .dtype = entry.dtype});
    }
    request.directory = std::move(entries);
  }
  auto reply = session_->Call<wire::SealMethod>(
      std::move(request),
      {.deadline = session_->CallDeadline(), .epoch = hold_->epoch, .subject = Subject()},
      [](auto& sent, const Link& link) { sent.session_id = link.session_id; });
  if (!reply.ok()) return std::move(reply).error();
  lease_.sealed = true;
  lease_.content_tag = std::string(content_tag);
  lease_.has_directory = !directory.empty();
  access_ = Access::kReadOnly;
  return {};
}

Result<std::vector<DirectoryEntry>> LeaseRecord::Directory() const {
  GPULEASE_RETURN_IF_ERROR(Usable());
  std::vector<DirectoryEntry> entries;
  if (!lease_.has_directory) return entries;
  wire::GetDirectoryRequest request;
  request.lease_id = lease_.lease_id;
  auto reply = session_->Call<wire::GetDirectoryMethod>(
      request, {.deadline = session_->CallDeadline(), .epoch = hold_->epoch, .subject = Subject()});
  if (!reply.ok()) return std::move(reply).error();
  if (!reply->directory) return entries;
  for (wire::DirectoryEntry& entry : reply->directory->entries) {
    entries.push_back({.name = std::move(entry.name),
                       .offset_bytes = entry.offset_bytes,
                       .size_bytes = entry.size_bytes,
                       .shape = std::move(entry.shape),
                       .dtype = std::move(entry.dtype)});
  }
  return entries;
}

Status LeaseRecord::End(bool release) {
  const CallTerms terms{.deadline = session_->CallDeadline(),
                        .ends = true,
                        .epoch = hold_->epoch,
                        .subject = Subject()};
  auto fill = [&](auto& request, const Link& link) { request.session_id = link.session_id; };
  if (release) {
    wire::ReleaseRequest request;
    request.lease_id = lease_.lease_id;
    auto reply = session_->Call<wire::ReleaseMethod>(request, terms, fill);
    if (!reply.ok()) return std::move(reply).error();
  } else {
    wire::CloseRequest request;
    request.lease_id = lease_.lease_id;
    auto reply = session_->Call<wire::CloseMethod>(request, terms, fill);
    if (!reply.ok()) return std::move(reply).error();
  }
  hold_->ended = true;
  session_->link().handles->LetGo(lease_.lease_id);
  return {};
}

Status LeaseRecord::Release() {
  GPULEASE_RETURN_IF_ERROR(Usable());
  if (!hold_->owned) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                     Subject() + " belongs to " + lease_.owner +
                         " and was opened here: Close() it, its owner releases it");
  }
  if (hold_->ranges > 0) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                     Subject() + " is still mapped here: destroy its Mappings first");
  }
  GPULEASE_RETURN_IF_ERROR(End(true));
  order_.reset();
  return {};
}

Status LeaseRecord::Disclaim() {
  GPULEASE_RETURN_IF_ERROR(Usable());
  return hold_->owned ? End(true) : Status();
}

Status LeaseRecord::Close() {
  GPULEASE_RETURN_IF_ERROR(Usable());
  {
    std::lock_guard lock(Table().mutex);
    if (hold_->records > 1) return {};
  }
  if (hold_->ranges > 0) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnspecified,
                     Subject() + " is still mapped here: destroy its Mappings first");
  }
  GPULEASE_RETURN_IF_ERROR(End(false));
  if (order_) GPULEASE_RETURN_IF_ERROR(order_->Close());
  return {};
}

}  // namespace abi_v1
}  // namespace gpulease
