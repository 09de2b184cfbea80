// SPDX-License-Identifier: Apache-2.0
//
// Requests, checked field by field.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <set>
#include <string_view>

#include "base/usage_hint.h"
#include "daemon/rpc/convert.h"

namespace gpulease::rpc {
namespace {

constexpr std::string_view kNameCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
constexpr std::string_view kKeyCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-";
constexpr int kMostSpecs = 64;
constexpr std::size_t kMostLabels = 16;
constexpr std::size_t kLongestName = 128;
constexpr std::size_t kLongestKey = 63;
constexpr std::size_t kLongestValue = 255;
constexpr std::size_t kLongestRequestId = 64;
constexpr std::size_t kLongestRealm = 1024;  // a cgroup's path
constexpr std::size_t kLongestUuid = 96;     // of a GPU's slice: 80
constexpr std::size_t kMostPageSize = 1000;
constexpr std::uint64_t kLongestWaitMs = 24ull * 3600 * 1000;
constexpr std::uint64_t kLongestLingerMs = 366ull * 24 * 3600 * 1000;
constexpr std::size_t kMostEntries = 65'536;
constexpr std::size_t kLongestDirectory = 2 * kMiB;
constexpr std::size_t kMostDimensions = 16;
constexpr std::size_t kLongestDtype = 32;
constexpr Bytes kLargestAlignment = kGiB;

Error Bad(std::string field, const std::string& what) {
  return MakeError(Code::kInvalidArgument, Reason::kBadField, std::move(field) + ": " + what);
}

bool Consists(std::string_view text, std::string_view characters, std::size_t longest) {
  return !text.empty() && text.size() <= longest &&
         text.find_first_not_of(characters) == std::string_view::npos;
}

// Without what could steer a terminal: C0, DEL, and C1 as UTF-8 writes it (C2 80 to C2 9F).
bool IsPrintable(std::string_view text) {
  unsigned char before = 0;
  return std::none_of(text.begin(), text.end(), [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    const bool steers = byte < 0x20 || byte == 0x7f || (before == 0xc2 && byte < 0xa0);
    before = byte;
    return steers;
  });
}

// The GPU of this UUID, kNoPool for none. Errors: kInvalidArgument/kBadField.
Result<ledger::PoolIndex> FindGpu(const std::string& uuid, const std::string& field,
                                  const broker::Broker& broker) {
  if (uuid.size() > kLongestUuid || !IsPrintable(uuid))
    return Bad(field + "gpu_uuid", "must have at most 96 bytes and no control characters");
  return broker.FindGpu(uuid);
}

Result<std::vector<ledger::PoolIndex>> HostPools(const v1::AllocationSpec& spec,
                                                 const std::string& field,
                                                 const broker::Broker& broker) {
  std::optional<std::int32_t> node;
  if (spec.has_numa_node()) node = spec.numa_node();
  if (!spec.gpu_uuid().empty()) {
    const Result<ledger::PoolIndex> found = FindGpu(spec.gpu_uuid(), field, broker);
    if (!found.ok()) return found.error();
    const ledger::PoolIndex gpu = *found;
    if (gpu == ledger::kNoPool) {
      return MakeError(Code::kNotFound, Reason::kNoSuchGpu,
                       field + "gpu_uuid: this node has no GPU \"" + spec.gpu_uuid() + "\"");
    }
    // A GPU whose node is unknown is near to all of them.
    if (!node && broker.pools()[gpu].gpu.numa_node >= 0) node = broker.pools()[gpu].gpu.numa_node;
  }
  std::vector<ledger::PoolIndex> pools;
  if (!node) return pools;
  for (ledger::PoolIndex i = 0; i < broker.pools().size(); ++i) {
    const broker::Pool& pool = broker.pools()[i];
    if (pool.spec.kind == ledger::PoolKind::kHost && pool.numa_node == *node) pools.push_back(i);
  }
  if (!pools.empty()) return pools;
  // A GPU may be near to a node without memory: then any will do. One that was asked for by number
  // must exist.
  if (spec.has_numa_node()) {
    return Bad(field + "numa_node",
               "this machine has no memory on NUMA node " + std::to_string(*node));
  }
  return pools;
}

// The request with what its usage hint says filled in.
Result<v1::AllocationSpec> Advised(v1::AllocationSpec spec, const std::string& field) {
  if (spec.usage() == v1::USAGE_HINT_UNSPECIFIED) return spec;
  const UsageAdvice* const advice = FindAdvice(static_cast<UsageHint>(spec.usage()));
  if (advice == nullptr) return Bad(field + "usage", "is not known; see gpuleasectl advise");
  if (spec.kind() == v1::MEMORY_KIND_UNSPECIFIED)
    spec.set_kind(advice->host ? v1::MEMORY_KIND_HOST : v1::MEMORY_KIND_DEVICE);
  if (spec.kind() != v1::MEMORY_KIND_HOST) return spec;
  if (spec.page_size() == v1::PAGE_SIZE_AUTO && advice->pages == UsageAdvice::Pages::kSmall)
    spec.set_page_size(v1::PAGE_SIZE_SMALL);
  // One that is used from everywhere is near to nothing.
  if (advice->host && !advice->near_gpu) spec.clear_gpu_uuid();
  return spec;
}

Result<ledger::AllocationSpec> ToSpec(const v1::AllocationSpec& asked, const std::string& field,
                                      const peers::Peer& peer, const broker::Broker& broker) {
  const Result<v1::AllocationSpec> advised = Advised(asked, field);
  if (!advised.ok()) return advised.error();
  const v1::AllocationSpec& in = *advised;
  ledger::AllocationSpec out;
  if (in.kind() == v1::MEMORY_KIND_DEVICE) {
    out.kind = ledger::PoolKind::kDevice;
    if (in.has_numa_node())
      return Bad(field + "numa_node", "is for host memory; device memory has gpu_uuid");
    if (in.page_size() != v1::PAGE_SIZE_AUTO) return Bad(field + "page_size", "is for host memory");
    if (!in.gpu_uuid().empty()) {
      const Result<ledger::PoolIndex> pool = FindGpu(in.gpu_uuid(), field, broker);
      if (!pool.ok()) return pool.error();
      if (*pool == ledger::kNoPool) {
        return MakeError(Code::kNotFound, Reason::kNoSuchGpu,
                         field + "gpu_uuid: this node has no GPU \"" + in.gpu_uuid() +
                             "\" to lease from; see gpuleasectl gpus");
      }
      out.pools.push_back(*pool);
    }
  } else if (in.kind() == v1::MEMORY_KIND_HOST) {
    out.kind = ledger::PoolKind::kHost;
    if (in.reserve_bytes() != 0) {
      return MakeError(Code::kInvalidArgument, Reason::kUnsupported,
                       field + "reserve_bytes: is for GPU memory; host memory keeps its size");
    }
    Result<std::vector<ledger::PoolIndex>> pools = HostPools(in, field, broker);
    if (!pools.ok()) return std::move(pools).error();
    out.pools = std::move(*pools);
  } else {
    return Bad(field + "kind",
               "must be MEMORY_KIND_DEVICE or MEMORY_KIND_HOST, or left to `usage`");
  }
  if (in.size_bytes() == 0) return Bad(field + "size_bytes", "must be at least 1");
  out.size = in.size_bytes();
  if (in.reserve_bytes() != 0 &&
      (in.reserve_bytes() < in.size_bytes() || in.reserve_bytes() > ledger::kLargestReserve)) {
    return Bad(field + "reserve_bytes",
               "must be 0, or size_bytes to " + FormatBytes(ledger::kLargestReserve));
  }
  out.reserve = in.reserve_bytes();
  const Bytes alignment = in.alignment_bytes();
  if ((alignment & (alignment - 1)) != 0 || alignment > kLargestAlignment) {
    return Bad(field + "alignment_bytes", "must be 0 or a power of two up to 1 GiB");
  }
  out.alignment = alignment;
  switch (in.page_size()) {
    case v1::PAGE_SIZE_AUTO:
      out.page_size = ledger::PageSize::kAuto;
      break;
    case v1::PAGE_SIZE_SMALL:
      out.page_size = ledger::PageSize::kSmall;
      break;
    case v1::PAGE_SIZE_HUGE:
      out.page_size = ledger::PageSize::kHuge;
      break;
    default:
      return Bad(field + "page_size", "must be AUTO, SMALL or HUGE");
  }
  if (!in.name().empty() && !Consists(in.name(), kNameCharacters, kLongestName)) {
    return Bad(field + "name", "must have at most 128 characters of A-Z a-z 0-9 . _ -");
  }
  out.name = in.name();
  if (in.has_mode()) {
    if ((in.mode() & ~0666u) != 0)
      return Bad(field + "mode", "must be made of read and write bits (0666)");
    out.mode = in.mode();
  }
  out.gid = in.has_gid() ? in.gid() : peer.user.gid;
  if (static_cast<std::size_t>(in.labels_size()) > kMostLabels)
    return Bad(field + "labels", "at most 16 are kept");
  if (in.loading() && in.name().empty())
    return Bad(field + "loading", "needs a name, by which readers wait for it");
  out.death_notice = in.death_notice();
  out.ipc = in.ipc_handle();
  out.loading = in.loading();
  if (in.persistent() && in.linger_ms() != 0)
    return Bad(field + "linger_ms", "is 0 for what is persistent");
  if (in.linger_ms() > kLongestLingerMs) {
    return Bad(field + "linger_ms",
               "at most a year: ask for persistent to keep it until it is "
               "released");
  }
  out.linger =
      in.persistent() ? ledger::kForever : Duration(std::chrono::milliseconds(in.linger_ms()));
  for (const auto& [key, value] : in.labels()) {
    if (!Consists(key, kKeyCharacters, kLongestKey)) {
      return Bad(field + "labels", "a key must have 1 to 63 characters of A-Z a-z 0-9 . _ / -");
    }
    if (value.size() > kLongestValue || !IsPrintable(value)) {
      return Bad(field + "labels[" + key + "]",
                 "must have at most 255 bytes and no control characters");
    }
    out.labels[key] = value;
  }
  return out;
}

}  // namespace

Result<ledger::AllocateCommand> ToCommand(const v1::AllocateRequest& request,
                                          const peers::Peer& peer, const broker::Broker& broker) {
  ledger::AllocateCommand command;
  command.session = ledger::SessionId{request.session_id()};
  if (request.specs_size() < 1 || request.specs_size() > kMostSpecs) {
    return Bad("specs",
               "1 to 64 are granted together, not " + std::to_string(request.specs_size()));
  }
  if (request.wait_ms() > kLongestWaitMs) return Bad("wait_ms", "at most 24 hours");
  command.wait = std::chrono::milliseconds(request.wait_ms());
  if (!request.request_id().empty() &&
      !Consists(request.request_id(), kNameCharacters, kLongestRequestId)) {
    return Bad("request_id", "must have at most 64 characters of A-Z a-z 0-9 . _ -");
  }
  command.request_id = request.request_id();
  for (int i = 0; i < request.specs_size(); ++i) {
    Result<ledger::AllocationSpec> spec =
        ToSpec(request.specs(i), "specs[" + std::to_string(i) + "].", peer, broker);
    if (!spec.ok()) return std::move(spec).error();
    command.specs.push_back(std::move(*spec));
  }
  return command;
}

Result<ledger::ResizeCommand> ToCommand(const v1::ResizeRequest& request) {
  if (request.wait_ms() > kLongestWaitMs) return Bad("wait_ms", "at most 24 hours");
  ledger::ResizeCommand command;
  command.session = ledger::SessionId{request.session_id()};
  command.lease = ledger::LeaseId{request.lease_id()};
  command.size = request.size_bytes();
  command.have_chunks = request.have_chunks();
  command.wait = std::chrono::milliseconds(request.wait_ms());
  return command;
}

Result<ledger::ResumeCommand> ToCommand(const v1::ResumeRequest& request) {
  if (request.wait_ms() > kLongestWaitMs) return Bad("wait_ms", "at most 24 hours");
  ledger::ResumeCommand command;
  command.session = ledger::SessionId{request.session_id()};
  command.lease = ledger::LeaseId{request.lease_id()};
  command.have_chunks = request.have_chunks();
  command.wait = std::chrono::milliseconds(request.wait_ms());
  return command;
}

Result<ledger::Access> ToAccess(v1::Access access) {
  switch (access) {
    case v1::ACCESS_UNSPECIFIED:
    case v1::ACCESS_READ_WRITE:
      return ledger::Access::kReadWrite;
    case v1::ACCESS_READ_ONLY:
      return ledger::Access::kReadOnly;
    default:
      return Bad("access", "must be ACCESS_READ_ONLY or ACCESS_READ_WRITE");
  }
}

Result<NamedLease> ToNamedLease(const std::string& text, const peers::Peer& peer,
                                UserNames& users) {
  NamedLease result;
  const std::size_t slash = text.rfind('/');  // a realm may have some
  result.owner = peer.user.id();
  result.name = slash == std::string::npos ? text : text.substr(slash + 1);
  if (!Consists(result.name, kNameCharacters, kLongestName)) {
    return Bad(
        "name",
        "must be NAME, USER/NAME or USER@REALM/NAME, NAME with 1 to 128 characters of A-Z a-z "
        "0-9 . _ -");
  }
  if (slash != std::string::npos) {
    const std::size_t at = std::min(text.find('@'), slash);
    const std::string user = text.substr(0, at);
    if (at < slash) result.owner.realm = text.substr(at + 1, slash - at - 1);
    if (result.owner.realm.size() > kLongestRealm || !IsPrintable(result.owner.realm)) {
      return Bad("name", "a REALM has at most 1024 bytes and no control characters");
    }
    if (user.size() > kLongestName || !IsPrintable(user) || user.find('/') != std::string::npos) {
      return Bad("name", "a USER has at most 128 bytes, no control characters and no \"/\"");
    }
    // The user database is asked for names that can be users' alone.
    const std::optional<std::uint32_t> uid =
        Consists(user, kNameCharacters, kLongestName) ? users.IdOf(user) : std::nullopt;
    if (!uid) {
      return MakeError(
          Code::kPermissionDenied, Reason::kNotOpenable,
          "lease " + text + ": there is none, or its owner has not opened it to the caller so");
    }
    result.owner.uid = *uid;
  }
  return result;
}

Status CheckContentTag(const std::string& tag) {
  if (tag.size() > kLongestValue || !IsPrintable(tag))
    return Bad("content_tag", "must have at most 255 bytes and no control characters");
  return {};
}

Result<std::shared_ptr<const std::string>> ToDirectory(const v1::Directory& directory, Bytes size) {
  if (directory.entries().empty()) return std::shared_ptr<const std::string>();
  if (static_cast<std::size_t>(directory.entries_size()) > kMostEntries)
    return Bad("directory",
               "at most 65536 entries, not " + std::to_string(directory.entries_size()));
  std::set<std::string_view> names;
  for (int i = 0; i < directory.entries_size(); ++i) {
    const v1::DirectoryEntry& entry = directory.entries(i);
    const std::string field = "directory.entries[" + std::to_string(i) + "].";
    if (entry.name().empty() || entry.name().size() > kLongestValue || !IsPrintable(entry.name()))
      return Bad(field + "name", "must have 1 to 255 bytes and no control characters");
    if (!names.insert(entry.name()).second) return Bad(field + "name", "stands twice");
    const std::optional<Bytes> end = CheckedAdd(entry.offset_bytes(), entry.size_bytes());
    if (!end || *end > size) {
      return Bad(field + "offset_bytes",
                 "ends behind the lease, which has " + std::to_string(size) + " bytes");
    }
    if (static_cast<std::size_t>(entry.shape_size()) > kMostDimensions)
      return Bad(field + "shape", "at most 16 dimensions");
    if (entry.dtype().size() > kLongestDtype || !IsPrintable(entry.dtype()))
      return Bad(field + "dtype", "must have at most 32 bytes and no control characters");
  }
  if (directory.ByteSizeLong() > kLongestDirectory) return Bad("directory", "at most 2 MiB in all");
  return std::make_shared<const std::string>(directory.SerializeAsString());
}

Result<std::uint64_t> ToPageStart(const std::string& token) {
  if (token.empty()) return std::uint64_t{0};
  std::uint64_t after = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), after);
  if (error != std::errc() || end != token.data() + token.size()) {
    return Bad("page_token", "is none of this daemon's: take next_page_token of the last reply");
  }
  return after;
}

std::size_t ToPageSize(std::uint32_t asked) {
  return asked == 0 ? kMostPageSize : std::min<std::size_t>(asked, kMostPageSize);
}

}  // namespace gpulease::rpc
