// SPDX-License-Identifier: Apache-2.0
//
// What daemon and keeper say to each other over keeper.sock. The keeper holds entries: a key, a
// record of bytes that it does not read, and descriptors. It knows nothing of memory.
//
//   daemon                               keeper
//   Hello                           ->
//                                   <-   Welcome, or Refused and the end
//   Take                            ->
//                                   <-   Kept [descriptors], one or more for each entry; End
//   Put [descriptors], one or more  ->
//   Erase, Reset, Settled           ->
//                                   <-   Ack, now and then: everything up to `sequence` is kept
//
// One message is one SEQPACKET packet: a fixed struct of this machine's byte order, in Put and Kept
// followed by the bytes of that part of the record. An entry that has more than fits into one
// packet comes in parts, one right after the other; it takes the place of what the key had before
// with the last of them, so that a sender who dies half-way changes nothing.
//
// Invariant: every struct has the size asserted here and starts with a Header; a receiver checks
// magic, version, kind and size before anything else, and drops the connection otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/packet.h"

namespace gpulease::keeper {

inline constexpr std::uint32_t kMagic = 0x314b4c47;  // "GLK1"
// Raised when a struct changes; Hello, Welcome and Refused keep their fields for ever.
inline constexpr std::uint16_t kVersion = 1;

enum class Kind : std::uint16_t {
  kHello = 1,
  kWelcome,
  kRefused,
  kTake,
  kKept,
  kEnd,
  kPut,
  kErase,
  kReset,
  kSettled,
  kAck
};

struct Header {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  Kind kind;
};

struct Hello {
  Header header{.kind = Kind::kHello};
  char daemon_version[32] = {};  // NUL-terminated, for people
};
static_assert(sizeof(Hello) == 40);

struct Welcome {
  Header header{.kind = Kind::kWelcome};
  std::uint64_t entries = 0;
  std::uint32_t takes = 0;             // how often they were taken since the last Settled
  std::uint32_t away_ms = 0;           // how long no daemon was connected
  std::uint32_t bound_ms = 0;          // how long none may be before everything is given up
  std::uint32_t descriptor_limit = 0;  // of the keeper
  char keeper_version[32] = {};        // NUL-terminated
};
static_assert(sizeof(Welcome) == 64);

// The keeper will not serve this connection, and closes it.
struct Refused {
  Header header{.kind = Kind::kRefused};
  char message[247] = {};     // NUL-terminated
  std::uint8_t for_good = 0;  // 1: the next try is refused as well
};
static_assert(sizeof(Refused) == 256);

// One part of an entry (kPut, kKept), followed by `bytes` bytes of its record.
struct Part {
  Header header{.kind = Kind::kPut};
  std::uint64_t key = 0;
  std::uint64_t sequence = 0;          // kPut: rises by one with each message of the daemon
  std::uint32_t part = 0;              // 0 ... parts - 1
  std::uint32_t parts = 0;             // at most kMaxParts
  std::uint32_t bytes = 0;             // at most kMaxPartBytes
  std::uint32_t descriptors = 0;       // that come with this message
  std::uint32_t same_descriptors = 0;  // 1: the entry keeps those it has, and none come
  std::uint32_t zero = 0;
};
static_assert(sizeof(Part) == 48);

// kErase: `key` goes. kReset: everything goes. kTake, kEnd, kSettled: `key` is 0.
//
// Take asks for every entry; End follows the last. Settled says that the daemon lives well with the
// entries it took: later takes count from there.
struct Command {
  Header header;
  std::uint64_t key = 0;
  std::uint64_t sequence = 0;
};
static_assert(sizeof(Command) == 24);

struct Ack {
  Header header{.kind = Kind::kAck};
  std::uint64_t sequence = 0;
};
static_assert(sizeof(Ack) == 16);

inline constexpr std::uint32_t kMaxPartBytes = 32u << 10;
// 4,096 parts hold a million descriptors.
inline constexpr std::uint32_t kMaxParts = 4096;
inline constexpr std::size_t kMaxMessageBytes = sizeof(Part) + kMaxPartBytes;

// The kind of a message, or nothing when it is too short or not of this protocol and version.
inline std::optional<Kind> KindOf(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic || header.version != kVersion) return std::nullopt;
  return header.kind;
}

// A part whose fields agree with what arrived, or nothing.
inline std::optional<Part> ParsePart(std::span<const std::byte> bytes, std::size_t descriptors) {
  if (bytes.size() < sizeof(Part)) return std::nullopt;
  const std::optional<Part> part = ReadPacket<Part>(bytes.first(sizeof(Part)));
  const bool fits = part->bytes == bytes.size() - sizeof(Part) &&
                    part->descriptors == descriptors && part->bytes <= kMaxPartBytes &&
                    part->parts >= 1 && part->parts <= kMaxParts && part->part < part->parts &&
                    part->same_descriptors <= 1 &&
                    (part->same_descriptors == 0 || descriptors == 0);
  return fits ? part : std::nullopt;
}

}  // namespace gpulease::keeper
