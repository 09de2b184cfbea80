// SPDX-License-Identifier: Apache-2.0
//
// The file "node" of a simulated node's directory: what all its processes share, mapped by each.
//
// Every field that changes is an atomic. None is trusted to be exact but the kernel's locks: the
// counter of a GPU is an upper bound, and is corrected from the locks under flock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/unique_fd.h"
#include "driver/simulated/chunk_record.h"
#include "driver/simulated/simulated.h"

namespace gpulease::simulated {

inline constexpr std::uint64_t kNodeMagic = 0x31444f4e'4d495347;  // "GSIMNOD1"
inline constexpr std::uint32_t kNodeVersion = 3;
inline constexpr int kMaxFaults = 32;
inline constexpr int kMaxProcesses = 1024;  // with a context, on all GPUs; more are not listed
inline constexpr char kNodeFileName[] = "/node";

struct GpuRecord {
  std::uint64_t capacity;
  std::atomic<std::uint64_t> upper_bound;  // of recorded bytes
  std::atomic<std::uint64_t> outside;
  std::atomic<std::uint32_t> utilization;
  std::atomic<std::uint32_t> lost;
  std::atomic<std::uint32_t> absent;
  std::atomic<std::uint32_t> xid;   // the last one
  std::atomic<std::uint64_t> xids;  // how many there were
};

struct FaultRecord {
  std::atomic<std::uint32_t> armed;
  std::atomic<std::uint32_t> action;
  std::atomic<std::uint64_t> function;  // FunctionId
  std::atomic<std::int64_t> remaining;  // calls until the first that meets it
  std::atomic<std::int64_t> times;
  std::atomic<std::int32_t> pid;
  std::atomic<std::int32_t> gpu;
  std::atomic<std::uint32_t> code;
};

// A process with a context on a GPU.
struct ProcessRecord {
  std::atomic<std::int32_t> pid;  // 0: free
  std::atomic<std::int32_t> gpu;
  std::atomic<std::uint64_t> used;  // mapped in that process
};

struct NodeFile {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t node;  // random
  std::uint32_t gpu_count;
  std::atomic<std::uint32_t> xids;  // on all GPUs; waited on
  std::uint64_t seed[2];            // of the UUIDs
  // Faults and lost GPUs: 0 on every fast path.
  std::atomic<std::uint32_t> armed;
  std::atomic<std::uint32_t> cleared;  // generation; waited on by blocked calls
  std::atomic<std::int64_t> met;
  GpuRecord gpus[kMaxGpus];
  FaultRecord faults[kMaxFaults];
  ProcessRecord processes[kMaxProcesses];
};

// The file mapped, for as long as anybody refers to it.
struct NodeMapping {
  NodeFile* file = nullptr;
  UniqueFd descriptor;  // for flock
  std::mutex mutex;     // one thread of this process at a time corrects the counters

  NodeMapping() = default;
  NodeMapping(const NodeMapping&) = delete;
  NodeMapping& operator=(const NodeMapping&) = delete;
  ~NodeMapping();

  // Makes a chunk and records it, if it fits.
  enum class Outcome { kOk, kOutOfMemory, kOperatingSystem };
  Outcome MakeChunk(int gpu, Bytes size, UniqueFd* chunk);

  Bytes Recorded(int gpu) const;
};

cuda::CUuuid NodeUuid(const NodeFile& file, int gpu);

// A function's name as a number: FNV-1a.
constexpr std::uint64_t FunctionId(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// What a call meets; looked at only when something is armed. Waits in it when the fault says so.
struct Meeting {
  std::optional<std::uint32_t> code;  // return that
  bool lost = false;                  // the GPU is lost
};
Meeting MeetFaults(NodeFile& file, std::uint64_t function, int gpu);

// Whether there are more than `seen` Xid errors by then.
bool WaitForXid(NodeFile& file, std::uint32_t seen, std::chrono::milliseconds most);

}  // namespace gpulease::simulated
