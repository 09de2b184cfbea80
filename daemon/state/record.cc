// SPDX-License-Identifier: Apache-2.0
#include "daemon/state/record.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "gpulease/v1/record.pb.h"

namespace gpulease::state {
namespace {

constexpr std::uint32_t kMagic = 0x31524c47;  // "GLR1"
// Raised when older daemons must not read it.
constexpr std::uint16_t kVersion = 1;

// In front of the serialised message.
struct Envelope {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t kind = 0;
  std::uint32_t bytes = 0;
  std::uint32_t checksum = 0;  // CRC-32 of the bytes
};
static_assert(sizeof(Envelope) == 16);

std::uint32_t Checksum(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

template <typename Message>
std::string Seal(RecordKind kind, const Message& message) {
  std::string text(sizeof(Envelope), '\0');
  message.AppendToString(&text);
  Envelope envelope;
  const std::string_view body = std::string_view(text).substr(sizeof envelope);
  envelope.kind = static_cast<std::uint16_t>(kind);
  envelope.bytes = static_cast<std::uint32_t>(body.size());
  envelope.checksum = Checksum(body);
  std::memcpy(text.data(), &envelope, sizeof envelope);
  return text;
}

Error Broken(std::string message) {
  return MakeError(Code::kDataLoss, Reason::kUnspecified, std::move(message));
}

template <typename Message>
Result<Message> ParseBody(std::string_view body) {
  Message message;
  if (!message.ParseFromArray(body.data(), static_cast<int>(body.size())))
    return Broken("its fields cannot be read");
  return message;
}

std::int64_t Nanoseconds(Time time) { return time.time_since_epoch().count(); }
Time FromNanoseconds(std::int64_t count) { return Time(Duration(count)); }

Result<Record> ReadNode(std::string_view body) {
  const Result<v1::NodeRecord> message = ParseBody<v1::NodeRecord>(body);
  if (!message.ok()) return message.error();
  KeptNode node;
  if (message->instance().size() != node.instance.size())
    return Broken("its instance is not 16 bytes");
  std::memcpy(node.instance.data(), message->instance().data(), node.instance.size());
  for (const std::string& uuid : message->drained_gpus()) node.retired.push_back({uuid, false});
  for (const std::string& uuid : message->lost_gpus()) node.retired.push_back({uuid, true});
  return Record(std::move(node));
}

Result<Record> ReadSession(std::string_view body) {
  const Result<v1::SessionRecord> message = ParseBody<v1::SessionRecord>(body);
  if (!message.ok()) return message.error();
  return Record(KeptSession{ledger::SessionId{message->session_id()}, message->program(),
                            message->client_version()});
}

Result<Record> ReadLease(std::string_view body) {
  const Result<v1::LeaseRecord> message = ParseBody<v1::LeaseRecord>(body);
  if (!message.ok()) return message.error();
  if (message->state() > static_cast<std::uint32_t>(ledger::State::kUnconfirmed))
    return Broken("its state " + std::to_string(message->state()) + " is not known");
  if (message->page_size() > static_cast<std::uint32_t>(ledger::PageSize::kHuge))
    return Broken("its page size " + std::to_string(message->page_size()) + " is not known");
  if (message->residence() > static_cast<std::uint32_t>(ledger::Residence::kResuming))
    return Broken("its residence " + std::to_string(message->residence()) + " is not known");
  KeptLease kept;
  kept.pool = message->pool();
  ledger::RestoredLease& restored = kept.lease;
  restored.request_id = message->request_id();
  restored.place = message->place();
  restored.exposed = message->exposed();
  restored.exposed_chunks = message->exposed_chunks();
  ledger::Lease& lease = restored.lease;
  lease.id = ledger::LeaseId{message->lease_id()};
  lease.group = ledger::GroupId{message->group_id()};
  lease.generation = message->generation();
  lease.state = static_cast<ledger::State>(message->state());
  lease.kind = message->host() ? ledger::PoolKind::kHost : ledger::PoolKind::kDevice;
  lease.requested = message->requested_bytes();
  lease.alignment = message->alignment();
  lease.chunks.assign(message->chunk_bytes().begin(), message->chunk_bytes().end());
  lease.page_size = static_cast<ledger::PageSize>(message->page_size());
  lease.owner = ledger::SessionId{message->owner_session_id()};
  lease.uid = message->uid();
  lease.realm = message->realm();
  lease.gid = message->gid();
  lease.mode = message->mode();
  lease.owner_pid = message->owner_pid();
  lease.tenant = message->tenant();
  lease.name = message->name();
  lease.labels.insert(message->labels().begin(), message->labels().end());
  for (const v1::LeaseRecord::Holding& holding : message->holders()) {
    lease.holders.push_back(
        {ledger::SessionId{holding.session_id()},
         holding.read_only() ? ledger::Access::kReadOnly : ledger::Access::kReadWrite,
         holding.taken(), holding.chunks(), holding.takes_part()});
  }
  lease.quarantined = message->quarantined();
  lease.loading = message->loading();
  lease.sealed = message->sealed();
  lease.content_tag = message->content_tag();
  lease.linger = Duration(message->linger());
  lease.ends = message->ends() == 0 ? kNever : FromNanoseconds(message->ends());
  lease.reserved = message->reserved_bytes();
  lease.target = message->target_bytes();
  lease.residence = static_cast<ledger::Residence>(message->residence());
  lease.suspended = message->suspended_bytes();
  kept.has_directory = message->has_directory();
  lease.death_notice = message->death_notice();
  lease.ipc = message->ipc();
  if (lease.ipc != (message->ipc_handle().size() == ledger::kIpcHandleBytes))
    return Broken("its IPC handle is not 64 bytes");
  kept.ipc_handle = message->ipc_handle();
  kept.ipc_offset = message->ipc_offset_bytes();
  lease.created = FromNanoseconds(message->created());
  lease.changed = FromNanoseconds(message->changed());
  return Record(std::move(kept));
}

Result<Record> ReadDirectory(std::string_view body) {
  Result<v1::DirectoryRecord> message = ParseBody<v1::DirectoryRecord>(body);
  if (!message.ok()) return std::move(message).error();
  return Record(KeptDirectory{ledger::LeaseId{message->lease_id()},
                              std::move(*message->mutable_directory())});
}

}  // namespace

std::string Encode(const KeptSession& session) {
  v1::SessionRecord message;
  message.set_session_id(session.session.value);
  message.set_program(session.program);
  message.set_client_version(session.client_version);
  return Seal(RecordKind::kSession, message);
}

std::string Encode(const KeptLease& kept) {
  const ledger::Lease& lease = kept.lease.lease;
  v1::LeaseRecord message;
  message.set_lease_id(lease.id.value);
  message.set_group_id(lease.group.value);
  message.set_place(kept.lease.place);
  message.set_generation(lease.generation);
  message.set_state(static_cast<std::uint32_t>(lease.state));
  message.set_host(lease.kind == ledger::PoolKind::kHost);
  message.set_pool(kept.pool);
  message.set_requested_bytes(lease.requested);
  message.set_alignment(lease.alignment);
  message.mutable_chunk_bytes()->Assign(lease.chunks.begin(), lease.chunks.end());
  message.set_page_size(static_cast<std::uint32_t>(lease.page_size));
  message.set_owner_session_id(lease.owner.value);
  message.set_uid(lease.uid);
  message.set_realm(lease.realm);
  message.set_gid(lease.gid);
  message.set_mode(lease.mode);
  message.set_owner_pid(lease.owner_pid);
  message.set_tenant(lease.tenant);
  message.set_name(lease.name);
  message.mutable_labels()->insert(lease.labels.begin(), lease.labels.end());
  for (const ledger::Holding& holding : lease.holders) {
    v1::LeaseRecord::Holding& one = *message.add_holders();
    one.set_session_id(holding.session.value);
    one.set_read_only(holding.access == ledger::Access::kReadOnly);
    one.set_taken(holding.taken);
    one.set_chunks(holding.chunks);
    one.set_takes_part(holding.takes_part);
  }
  message.set_quarantined(lease.quarantined);
  message.set_death_notice(lease.death_notice);
  message.set_ipc(lease.ipc);
  message.set_ipc_handle(kept.ipc_handle);
  message.set_ipc_offset_bytes(kept.ipc_offset);
  message.set_exposed(kept.lease.exposed);
  message.set_exposed_chunks(kept.lease.exposed_chunks);
  message.set_request_id(kept.lease.request_id);
  message.set_reserved_bytes(lease.reserved);
  message.set_target_bytes(lease.target);
  message.set_residence(static_cast<std::uint32_t>(lease.residence));
  message.set_suspended_bytes(lease.suspended);
  message.set_loading(lease.loading);
  message.set_sealed(lease.sealed);
  message.set_content_tag(lease.content_tag);
  message.set_linger(lease.linger.count());
  message.set_ends(lease.ends == kNever ? 0 : Nanoseconds(lease.ends));
  message.set_has_directory(lease.directory != nullptr);
  message.set_created(Nanoseconds(lease.created));
  message.set_changed(Nanoseconds(lease.changed));
  return Seal(RecordKind::kLease, message);
}

std::string Encode(const KeptDirectory& kept) {
  v1::DirectoryRecord message;
  message.set_lease_id(kept.lease.value);
  message.set_directory(kept.directory);
  return Seal(RecordKind::kDirectory, message);
}

std::string Encode(const KeptNode& node) {
  v1::NodeRecord message;
  message.set_instance(node.instance.data(), node.instance.size());
  for (const RetiredGpu& gpu : node.retired)
    *(gpu.lost ? message.add_lost_gpus() : message.add_drained_gpus()) = gpu.uuid;
  return Seal(RecordKind::kNode, message);
}

Result<Record> Decode(std::uint64_t key, std::string_view bytes) {
  Envelope envelope;
  if (bytes.size() < sizeof envelope) return Broken("it is too short");
  std::memcpy(&envelope, bytes.data(), sizeof envelope);
  const std::string_view body = bytes.substr(sizeof envelope);
  if (envelope.magic != kMagic) return Broken("it is no record of gpuleased");
  if (envelope.version != kVersion) {
    return Broken("it is of version " + std::to_string(envelope.version) +
                  ", this daemon reads version " + std::to_string(kVersion));
  }
  if (envelope.bytes != body.size()) return Broken("it was cut short");
  if (envelope.checksum != Checksum(body)) return Broken("its checksum is wrong");
  if (envelope.kind != key >> 56) return Broken("it is of another kind than its key");
  Result<Record> record = Broken("its kind " + std::to_string(envelope.kind) + " is not known");
  std::uint64_t id = 0;
  switch (static_cast<RecordKind>(envelope.kind)) {
    case RecordKind::kNode:
      record = ReadNode(body);
      break;
    case RecordKind::kSession:
      record = ReadSession(body);
      if (record.ok()) id = std::get<KeptSession>(*record).session.value;
      break;
    case RecordKind::kLease:
      record = ReadLease(body);
      if (record.ok()) id = std::get<KeptLease>(*record).lease.lease.id.value;
      break;
    case RecordKind::kDirectory:
      record = ReadDirectory(body);
      if (record.ok()) id = std::get<KeptDirectory>(*record).lease.value;
      break;
  }
  if (record.ok() && KeyOf(static_cast<RecordKind>(envelope.kind), id) != key)
    return Broken("it is another one's than its key says");
  return record;
}

}  // namespace gpulease::state
