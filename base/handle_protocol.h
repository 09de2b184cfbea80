// SPDX-License-Identifier: Apache-2.0
//
// The handle socket's messages: what travels beside gRPC, since gRPC cannot carry descriptors.
//
//   client                          daemon
//   Hello [own pidfd]       ->
//                           <-      Welcome, or Refused and the end
//   (gRPC call with a push tag)
//                           <-      Push [up to 253 descriptors], one or more, before the call's
//                           reply is sent
//   Taken, one a Push       ->
//
// One message is one SEQPACKET packet: a fixed struct of this machine's byte order. The session is
// the connection: it lives as long as its process does, and survives the connection by `grace`
// (Welcome) to be resumed by another Hello.
//
// Invariant: every struct has the size asserted here and starts with a Header; a receiver checks
// magic, kind and size before anything else, and drops the peer otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/packet.h"

namespace gpulease::handle {

// Linux 6.16. The daemon's listeners have it off: closing a stranger's descriptor may take as long
// as the stranger likes (a socket that lingers, a file system of his own). Where a socket has the
// option, no client sends descriptors.
#ifndef SO_PASSRIGHTS
inline constexpr int kPassRights = 83;
#else
inline constexpr int kPassRights = SO_PASSRIGHTS;
#endif

inline constexpr std::uint32_t kMagic = 0x31484c47;  // "GLH1"
// Raised when a struct changes; Hello and Welcome keep their first three fields for ever.
inline constexpr std::uint16_t kVersion = 1;

enum class Kind : std::uint16_t { kHello = 1, kWelcome = 2, kRefused = 3, kPush = 4, kTaken = 5 };

struct Header {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  Kind kind;
};

// Opens a session, or resumes the one named. With one descriptor where the kernel has no
// SO_PEERPIDFD (before Linux 6.5): the sender's own pidfd.
struct Hello {
  Header header{.kind = Kind::kHello};
  std::uint64_t resume_session_id = 0;  // 0: a new session
  char client_version[32] = {};         // NUL-terminated, for people
  char program[32] = {};                // NUL-terminated, for people: what the process calls itself
};
static_assert(sizeof(Hello) == 80);

inline constexpr std::uint32_t kWelcomeResumed = 1;  // the session is the one that was asked for
inline constexpr std::uint32_t kWelcomeSimulated =
    2;  // GPUs are simulated: load the simulated driver

struct Welcome {
  Header header{.kind = Kind::kWelcome};
  std::uint64_t session_id = 0;
  std::uint8_t instance[16] = {};  // of this life of the leases: a restart that
                                   // lost none keeps it
  std::uint32_t flags = 0;         // kWelcome...
  std::uint32_t grace_ms = 0;      // how long the session waits for a lost connection to come back
  char daemon_version[32] = {};    // NUL-terminated
  char simulated_directory[256] =
      {};  // NUL-terminated: GPULEASE_SIMULATED_DIR for the simulated driver
};
static_assert(sizeof(Welcome) == 328);

// The daemon will not serve this connection, and closes it.
struct Refused {
  Header header{.kind = Kind::kRefused};
  std::int32_t code = 0;    // gpulease::Code
  std::int32_t reason = 0;  // gpulease::Reason
  char message[496] = {};   // NUL-terminated
};
static_assert(sizeof(Refused) == 512);

// Chunks [first, first + count) of a lease, one descriptor each, in the order of their offsets.
struct Push {
  Header header{.kind = Kind::kPush};
  std::uint64_t tag = 0;  // of the call that asked for it
  std::uint64_t lease_id = 0;
  std::uint64_t generation = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;  // at most kMaxDescriptorsPerMessage
  std::uint32_t total = 0;  // chunks of the lease
  std::uint32_t read_only = 0;
};
static_assert(sizeof(Push) == 48);

// The answer to one Push: its descriptors arrived (or did not: then the daemon takes the lease, or
// this opening of it, back, and no other Taken of that lease and tag is needed).
struct Taken {
  Header header{.kind = Kind::kTaken};
  std::uint64_t tag = 0;
  std::uint64_t lease_id = 0;
  std::uint32_t count = 0;  // as in the Push
  std::uint32_t ok = 1;     // 0: given back
};
static_assert(sizeof(Taken) == 32);

inline constexpr std::size_t kMaxMessageBytes = 512;

// The kind of a message, or nothing when it is too short or not ours.
inline std::optional<Kind> KindOf(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) return std::nullopt;
  return header.kind;
}

// The message as T, or nothing when its size or version is another one. The caller has looked at
// KindOf().
template <typename T>
std::optional<T> Parse(std::span<const std::byte> bytes) {
  const std::optional<T> message = ReadPacket<T>(bytes);
  return message && message->header.version == kVersion ? message : std::nullopt;
}

using gpulease::BytesOf;

}  // namespace gpulease::handle
