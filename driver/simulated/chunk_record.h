// SPDX-License-Identifier: Apache-2.0
//
// A chunk of simulated memory: a memfd that says in its name what it is, and a file lock on its
// open file description that says so to the whole machine.
//
// The lock is an OFD lock whose range encodes node, GPU and size; /proc/locks lists it. The kernel
// drops it when the last descriptor and the last mapping of the description are gone, in whatever
// process and however that ended.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/unique_fd.h"
#include "driver/simulated/simulated.h"

namespace gpulease::simulated {

struct ChunkIdentity {
  std::uint32_t node = 0;
  int gpu = 0;
  Bytes size = 0;
};

// A sparse memfd of that identity, not recorded yet; empty with errno set.
UniqueFd NewChunk(const ChunkIdentity& identity);

// Records it, once for all who share its description. False with errno set when another
// description of the same chunk is recorded, or the kernel has no OFD locks.
bool RecordChunk(int chunk, const ChunkIdentity& identity);

// What the descriptor is a chunk of; empty when it is none.
std::optional<ChunkIdentity> IdentifyChunk(int descriptor);

// The recorded bytes of each of the node's GPUs.
struct Recording {
  std::array<Bytes, kMaxGpus> bytes = {};
  // False when chunks came and went meanwhile: each that is counted was there at some time since
  // the call began, and perhaps not all at once.
  bool exact = true;
};
Recording ReadRecords(std::uint32_t node);

}  // namespace gpulease::simulated
