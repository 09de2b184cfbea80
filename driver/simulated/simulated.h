// SPDX-License-Identifier: Apache-2.0
//
// A simulated node: GPUs made of memfds, described by one directory that every process of the node
// looks at. The driver that serves it is libgpulease-simulated.so; this header is for who sets the
// node up (the daemon) and for who makes it fail (tests).
//
// A chunk is a memfd whose open file description carries a file lock as its accounting record: the
// kernel drops the lock with the last descriptor or mapping, in whatever process, so that what is
// used is exact without anybody keeping count. Untouched memory costs nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "driver/cuda_abi.h"
#include "driver/nvml_abi.h"

namespace gpulease::simulated {

inline constexpr int kMaxGpus = 16;                    // of a simulated node
inline constexpr Bytes kGranularity = 2 * kMiB;        // of every size and address, as on real GPUs
inline constexpr Bytes kMaxCapacity = Bytes{1} << 42;  // 4 TiB a GPU; the accounting record holds 8
inline constexpr Bytes kReserved = 256 * kMiB;         // on top of the capacity, as NVML shows it
inline constexpr char kDriverVersion[] = "580.0.0-simulated";

struct NodeSpec {
  std::vector<Bytes> gpus;  // how much cuMemCreate can give from each
};

// Reads "2x16GiB", "16GiB" or "1x8GiB,1x24GiB".
//
// Errors: kInvalidArgument/kBadField, with what is wrong and an example.
Result<NodeSpec> ParseSpec(std::string_view text);
// "2x16GiB,1x24GiB"
std::string FormatSpec(const NodeSpec& spec);

enum class FaultAction : std::uint32_t {
  kFail = 1,     // the call returns `code` and does nothing
  kBlock = 2,    // the call waits until ClearFaults, and then goes on
  kGpuLost = 3,  // the GPU is lost from this call on, until ClearFaults: calls that use it return
                 // CUDA_ERROR_DEVICE_UNAVAILABLE or NVML_ERROR_GPU_IS_LOST; its identity can still
                 // be asked, and what is held can still be let go
};

// Something that shall go wrong.
struct Fault {
  std::string function;    // "cuMemCreate", "nvmlDeviceGetMemoryInfo_v2"; kGpuLost: "" is at once
  std::int64_t nth = 1;    // the nth matching call from now is the first to meet it
  std::int64_t times = 1;  // and that many calls do; 0: all until ClearFaults
  std::int32_t pid = 0;    // of the calling process; 0: any
  int gpu = -1;            // index in the spec's order; -1: any
  FaultAction action = FaultAction::kFail;
  std::uint32_t code = 0;  // kFail: a CUresult, or an nvmlReturn_t for a function of NVML
};

struct NodeMapping;

// One simulated node, seen from this process. Cheap to copy; usable from every thread, and at the
// same time as any other process's view of it.
class Node {
 public:
  // Makes `directory` (which may exist) describe such a node. A node of the same spec that is
  // there already stays, with its memory; one of another spec is replaced.
  //
  // Errors: kInvalidArgument; those of ErrnoError.
  static Result<Node> Create(const std::string& directory, const NodeSpec& spec);
  // Errors: kNotFound when there is no node; kFailedPrecondition when it is of another version.
  static Result<Node> Open(const std::string& directory);

  int gpu_count() const;
  Bytes capacity(int gpu) const;
  cuda::CUuuid uuid(int gpu) const;
  std::string uuid_text(int gpu) const;  // "GPU-…"
  std::uint32_t id() const;              // random; on every chunk of the node

  // What NVML shows as used: the chunks that anything still holds, and the bytes outside.
  Bytes Used(int gpu) const;
  // Pretends that programs which know no gpulease use that much.
  void SetOutsideBytes(int gpu, Bytes bytes);
  // A GPU that is not present is shown to no process that loads the driver from here on.
  void SetPresent(int gpu, bool present);
  bool present(int gpu) const;
  // The driver reports an Xid error of the GPU, to those who listen by then. Only the last one is
  // told to who does not come for each.
  void RaiseXid(int gpu, std::uint32_t number);
  void SetUtilization(int gpu, int percent);
  int utilization(int gpu) const;

  // Errors: kInvalidArgument for a function that the driver has not, or a GPU that the node has
  // not; kResourceExhausted when 32 are pending.
  Status InjectFault(const Fault& fault);
  void ClearFaults();
  // How many calls met a fault since the node was made or ClearFaults was called: a blocked call
  // counts from when it begins to wait.
  std::int64_t FaultsMet() const;

  const std::shared_ptr<NodeMapping>& mapping() const { return mapping_; }

 private:
  explicit Node(std::shared_ptr<NodeMapping> mapping) : mapping_(std::move(mapping)) {}
  std::shared_ptr<NodeMapping> mapping_;
};

}  // namespace gpulease::simulated
