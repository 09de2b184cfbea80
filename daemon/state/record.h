// SPDX-License-Identifier: Apache-2.0
//
// Records: what the keeper holds for the daemon, as bytes with a version and a checksum. A record
// that is not whole, or of a version that this daemon does not know, is told apart from one that
// is: it is never half believed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "daemon/ledger/ledger.h"

namespace gpulease::state {

// What an entry is of; in the top byte of its key, above the id.
enum class RecordKind : std::uint8_t { kNode = 1, kSession = 2, kLease = 3, kDirectory = 4 };

constexpr std::uint64_t KeyOf(RecordKind kind, std::uint64_t id) {
  return static_cast<std::uint64_t>(kind) << 56 | id;
}

// Its descriptors: handle socket, pidfd.
struct KeptSession {
  ledger::SessionId session;
  std::string program;
  std::string client_version;
};

// Its descriptors: the chunks. `lease.pool` is by name, in `pool`.
struct KeptLease {
  ledger::RestoredLease lease;
  std::string pool;
  bool has_directory = false;  // in a KeptDirectory of its own
  std::string ipc_handle;      // of lease.ipc: 64 bytes
  Bytes ipc_offset = 0;
};

struct KeptDirectory {
  ledger::LeaseId lease;
  std::string directory;
};

// A GPU that was served and, on purpose, is not any more: the daemon has let go of it.
struct RetiredGpu {
  std::string uuid;
  bool lost = false;  // else drained

  friend bool operator==(const RetiredGpu&, const RetiredGpu&) = default;
};

struct KeptNode {
  std::array<std::uint8_t, 16> instance{};
  std::vector<RetiredGpu> retired;
};

std::string Encode(const KeptSession& session);
std::string Encode(const KeptLease& lease);
std::string Encode(const KeptDirectory& directory);
std::string Encode(const KeptNode& node);

using Record = std::variant<KeptNode, KeptSession, KeptLease, KeptDirectory>;

// The record kept under `key`.
//
// Errors: kDataLoss: what is wrong with it, fit for a log.
Result<Record> Decode(std::uint64_t key, std::string_view bytes);

}  // namespace gpulease::state
