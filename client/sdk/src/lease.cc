// SPDX-License-Identifier: Apache-2.0
//
// Lease, Mapping and PendingLease: thin owners of the records.
#include <algorithm>
#include <utility>

#include "client/sdk/src/exception.h"
#include "client/sdk/src/order/publication.h"
#include "client/sdk/src/pending_record.h"

namespace gpulease {
namespace {

template <typename Record>
Record& Use(const std::shared_ptr<Record>& record) {
  if (!record) {
    throw Exception(ErrorCode::kFailedPrecondition, ErrorReason::kUnspecified,
                    "this object is empty: it was moved from, released, closed or never filled");
  }
  return *record;
}

Publication& Order(const std::shared_ptr<LeaseRecord>& record) {
  OrThrow(Use(record).Usable());
  if (Publication* const order = record->order()) return *order;
  throw Exception(ErrorCode::kFailedPrecondition, ErrorReason::kUnsupported,
                  "lease " + std::to_string(record->lease().lease_id) +
                      " was allocated without AllocateOptions::ordered");
}

std::vector<LeaseHolder> HoldersOf(std::vector<wire::Holder> holders) {
  std::vector<LeaseHolder> converted;
  for (wire::Holder& holder : holders)
    converted.push_back(
        {.pid = holder.pid, .uid = holder.uid, .program = std::move(holder.program)});
  return converted;
}

}  // namespace

inline namespace abi_v1 {

Mapping::Mapping() = default;
Mapping::Mapping(std::shared_ptr<MappedRange> range) : range_(std::move(range)) {}
Mapping::Mapping(Mapping&&) noexcept = default;
Mapping& Mapping::operator=(Mapping&&) noexcept = default;
Mapping::~Mapping() = default;

std::uint64_t Mapping::device_pointer() const {
  if (!range_) return 0;
  if (range_->ipc) return range_->ipc->address();
  return range_->device ? range_->device->address() : range_->host->device_address();
}

void* Mapping::host_pointer() const {
  return range_ && range_->host ? range_->host->address() : nullptr;
}

std::span<std::byte> Mapping::bytes() const {
  if (!range_ || !range_->host) return {};
  return {range_->host->address(), size_bytes()};
}

std::uint64_t Mapping::size_bytes() const { return range_ ? range_->record->size_bytes() : 0; }

Access Mapping::access() const { return range_ ? range_->access : Access::kReadOnly; }
int Mapping::device_ordinal() const { return range_ ? range_->ordinal : -1; }
std::uint64_t Mapping::lease_id() const { return range_ ? range_->record->lease().lease_id : 0; }

Lease::Lease() = default;
Lease::Lease(std::shared_ptr<LeaseRecord> record) : record_(std::move(record)) {}
Lease::Lease(Lease&&) noexcept = default;
Lease& Lease::operator=(Lease&&) noexcept = default;
Lease::~Lease() = default;

std::uint64_t Lease::id() const { return Use(record_).lease().lease_id; }
std::uint64_t Lease::generation() const { return Use(record_).lease().generation; }
const std::string& Lease::name() const { return Use(record_).lease().name; }
std::uint64_t Lease::size_bytes() const { return Use(record_).size_bytes(); }
std::uint64_t Lease::requested_bytes() const { return Use(record_).requested_bytes(); }
std::uint64_t Lease::reserved_bytes() const { return Use(record_).lease().reserved_bytes; }
std::uint64_t Lease::alignment_bytes() const { return Use(record_).lease().alignment_bytes; }

MemoryKind Lease::kind() const {
  return Use(record_).lease().kind == wire::MemoryKind::kHost ? MemoryKind::kHost
                                                              : MemoryKind::kDevice;
}

const std::string& Lease::gpu_uuid() const { return Use(record_).lease().gpu_uuid; }
int Lease::numa_node() const { return Use(record_).lease().numa_node; }

PageSize Lease::page_size() const {
  return Use(record_).lease().page_size == wire::PageSize::kHuge ? PageSize::kHuge
                                                                 : PageSize::kSmall;
}

const std::string& Lease::owner() const { return Use(record_).lease().owner; }
bool Lease::owned() const { return Use(record_).owned(); }
Access Lease::access() const { return Use(record_).access(); }

std::vector<std::uint64_t> Lease::chunk_sizes() const { return Use(record_).chunk_sizes(); }

bool Lease::sealed() const { return Use(record_).lease().sealed; }
const std::string& Lease::content_tag() const { return Use(record_).lease().content_tag; }

void Lease::Seal(std::string_view content_tag, std::span<const DirectoryEntry> directory) {
  OrThrow(Use(record_).Seal(content_tag, directory));
}

std::vector<DirectoryEntry> Lease::Directory() const { return OrThrow(Use(record_).Directory()); }

Mapping Lease::Map(const MapOptions& options) const {
  return Mapping(OrThrow(Use(record_).Map(record_, options)));
}

IpcHandle Lease::ipc_handle() const {
  const LeaseRecord& record = Use(record_);
  OrThrow(record.Usable());
  const wire::Lease& lease = record.lease();
  IpcHandle handle;
  if (lease.ipc_handle.size() != handle.bytes.size()) {
    throw Exception(ErrorCode::kFailedPrecondition, ErrorReason::kUnsupported,
                    "lease " + std::to_string(lease.lease_id) +
                        " was allocated without AllocateOptions::ipc_handle");
  }
  std::copy(lease.ipc_handle.begin(), lease.ipc_handle.end(), handle.bytes.begin());
  handle.offset_bytes = lease.ipc_offset_bytes;
  handle.size_bytes = lease.size_bytes;
  return handle;
}

std::vector<int> Lease::DuplicateDescriptors() const { return OrThrow(Use(record_).Duplicate()); }

std::vector<LeaseHolder> Lease::Resize(std::uint64_t size_bytes, std::chrono::milliseconds wait) {
  return HoldersOf(OrThrow(Use(record_).Resize(size_bytes, wait)));
}

bool Lease::Refresh() { return OrThrow(Use(record_).Refresh()); }

void Lease::PrepareSuspend(std::chrono::milliseconds wait) {
  OrThrow(Use(record_).PrepareSuspend(wait));
}

void Lease::DropSuspendRoom() { OrThrow(Use(record_).DropSuspendRoom()); }

std::vector<LeaseHolder> Lease::Suspend(const SuspendOptions& options) {
  return HoldersOf(OrThrow(Use(record_).Suspend(options)));
}

void Lease::Resume(const ResumeOptions& options) { OrThrow(Use(record_).Resume(options)); }

void Lease::TakePart(SuspendHooks hooks) { OrThrow(Use(record_).TakePart(std::move(hooks))); }

bool Lease::suspended() const { return Use(record_).suspended(); }

std::uint64_t Lease::Publish() { return OrThrow(Order(record_).Publish()); }

std::uint64_t Lease::Publish(void* stream) { return OrThrow(Order(record_).PublishAfter(stream)); }

std::uint64_t Lease::WaitPublished(std::uint64_t sequence,
                                   std::chrono::milliseconds timeout) const {
  return OrThrow(Order(record_).Wait(sequence, timeout));
}

std::uint64_t Lease::WaitPublished(std::uint64_t sequence, void* stream,
                                   std::chrono::milliseconds timeout) const {
  return OrThrow(Order(record_).WaitOn(sequence, stream, timeout));
}

std::uint64_t Lease::published() const { return OrThrow(Order(record_).sequence()); }

void Lease::Release() {
  OrThrow(Use(record_).Release());
  record_.reset();
}

void Lease::Close() {
  OrThrow(Use(record_).Close());
  record_.reset();
}

PendingLease::PendingLease() = default;
PendingLease::PendingLease(std::shared_ptr<PendingRecord> record) : record_(std::move(record)) {}
PendingLease::PendingLease(PendingLease&&) noexcept = default;
PendingLease& PendingLease::operator=(PendingLease&&) noexcept = default;
PendingLease::~PendingLease() = default;

std::uint64_t PendingLease::id() const { return Use(record_).first_id(); }

bool PendingLease::ready() const {
  OrThrow(Use(record_).session()->ok());
  return !record_->queued();
}

std::uint32_t PendingLease::queue_position() const { return Use(record_).position(); }

const std::vector<BlockingLease>& PendingLease::blockers() const { return Use(record_).blockers(); }

std::optional<Lease> PendingLease::Wait(std::chrono::milliseconds timeout) {
  auto records = OrThrow(Use(record_).Wait(timeout));
  if (records.empty()) return std::nullopt;
  record_.reset();
  return Lease(std::move(records.front()));
}

void PendingLease::Cancel() {
  OrThrow(Use(record_).Cancel());
  record_.reset();
}

}  // namespace abi_v1
}  // namespace gpulease
