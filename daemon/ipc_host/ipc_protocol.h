// SPDX-License-Identifier: Apache-2.0
//
// What gpuleased asks gpulease-ipc-host, over a SOCK_SEQPACKET socket: one request on each
// connection, one reply to it.
//
// The reply to kMake has a descriptor: the writing end of a pipe, which nobody writes to. The block
// lives as long as any duplicate of it is open anywhere: the reading end, which the host has, hangs
// up with the last of them, however that came about, and the host frees the block. The other way
// round it reports an error when the host is gone, and the block with it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpulease::ipc {

inline constexpr std::uint32_t kMagic = 0x31494c47;  // "GLI1"
// Raised when a struct changes. A host of another version ends with its last block.
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kHandleBytes = 64;

enum class Kind : std::uint16_t {
  kReady = 1,  // answered when it has its context, or cannot have it
  kMake        // a block of `bytes`
};

struct Request {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  Kind kind = Kind::kReady;
  std::uint64_t bytes = 0;  // a multiple of the GPU's granularity
};
static_assert(sizeof(Request) == 16);

struct Reply {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t unused = 0;
  std::int32_t code = 0;  // of base/result.h; 0: it worked
  std::int32_t reason = 0;
  std::uint64_t offset = 0;  // of the block in what the handle opens
  char handle[kHandleBytes] = {};
  char message[512] = {};  // NUL-terminated
};
static_assert(sizeof(Reply) == 600);

}  // namespace gpulease::ipc
