// SPDX-License-Identifier: Apache-2.0
//
// Faults: armed in the node file by any process, met by every process's calls.
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "driver/simulated/node_file.h"

namespace gpulease::simulated {
namespace {

constexpr std::string_view kFunctions[] = {
#define GPULEASE_CUDA_FUNCTION(name, symbol, ...) #name,
#include "driver/cuda_functions.inc"
#undef GPULEASE_CUDA_FUNCTION
#define GPULEASE_NVML_FUNCTION(name, required, type, ...) #name,
#include "driver/nvml_functions.inc"
#undef GPULEASE_NVML_FUNCTION
};

bool IsFunction(std::string_view name) {
  for (const std::string_view function : kFunctions) {
    if (function == name) return true;
  }
  return false;
}

Error BadFault(std::string message) {
  return MakeError(Code::kInvalidArgument, Reason::kBadField, std::move(message));
}

void WaitForClearing(NodeFile& file, FaultRecord& fault, std::uint32_t generation) {
  while (file.cleared.load() == generation && fault.armed.load() != 0) {
    // The time is a bound on how long a lost wake-up goes unnoticed, not what ends the waiting.
    const timespec bound = {.tv_sec = 1, .tv_nsec = 0};
    syscall(SYS_futex, &file.cleared, FUTEX_WAIT, generation, &bound, nullptr, 0);
  }
}

void Lose(NodeFile& file, int gpu) {
  if (file.gpus[gpu].lost.exchange(1) == 0) file.armed.fetch_add(1);
}

}  // namespace

Meeting MeetFaults(NodeFile& file, std::uint64_t function, int gpu) {
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  Meeting meeting;
  const std::int32_t pid = getpid();
  for (FaultRecord& fault : file.faults) {
    const std::uint32_t generation = file.cleared.load();
    if (fault.armed.load() == 0 || fault.function.load() != function) continue;
    if (fault.pid.load() != 0 && fault.pid.load() != pid) continue;
    if (fault.gpu.load() >= 0 && fault.gpu.load() != gpu) continue;
    const std::int64_t left = fault.remaining.fetch_sub(1) - 1;
    if (left > 0) continue;
    const std::int64_t met_before = -left;
    const std::int64_t times = fault.times.load();
    if (times > 0 && met_before >= times) continue;
    const FaultAction action = static_cast<FaultAction>(fault.action.load());
    const std::uint32_t code = fault.code.load();
    file.met.fetch_add(1);
    if (action == FaultAction::kBlock) {
      WaitForClearing(file, fault, generation);
      continue;
    }
    if (times > 0 && met_before + 1 == times && fault.armed.exchange(0) != 0) {
      file.armed.fetch_sub(1);
    }
    if (action == FaultAction::kGpuLost && gpu >= 0) Lose(file, gpu);
    if (action == FaultAction::kFail) {
      meeting.code = code;
      return meeting;
    }
  }
  meeting.lost = gpu >= 0 && file.gpus[gpu].lost.load() != 0;
  return meeting;
}

Status Node::InjectFault(const Fault& fault) {
  NodeFile& file = *mapping_->file;
  if (fault.gpu < -1 || fault.gpu >= gpu_count()) {
    return BadFault("fault on GPU " + std::to_string(fault.gpu) + ": the node has " +
                    std::to_string(gpu_count()));
  }
  if (fault.nth < 1 || fault.times < 0) return BadFault("fault: nth counts from 1, times from 0");
  if (fault.action == FaultAction::kGpuLost && fault.function.empty()) {
    for (int gpu = 0; gpu < gpu_count(); ++gpu) {
      if (fault.gpu == -1 || fault.gpu == gpu) Lose(file, gpu);
    }
    return {};
  }
  if (!IsFunction(fault.function)) {
    return BadFault("fault in \"" + fault.function + "\": the driver has no such function");
  }
  const std::lock_guard lock(mapping_->mutex);
  flock(mapping_->descriptor.get(), LOCK_EX);
  FaultRecord* free = nullptr;
  for (FaultRecord& record : file.faults) {
    if (record.armed.load() == 0) {
      free = &record;
      break;
    }
  }
  if (free != nullptr) {
    free->action = static_cast<std::uint32_t>(fault.action);
    free->function = FunctionId(fault.function);
    free->remaining = fault.nth;
    free->times = fault.times;
    free->pid = fault.pid;
    free->gpu = fault.gpu;
    free->code = fault.code;
    free->armed = 1;
    file.armed.fetch_add(1);
  }
  flock(mapping_->descriptor.get(), LOCK_UN);
  if (free == nullptr) {
    return MakeError(Code::kResourceExhausted, Reason::kUnspecified,
                     std::to_string(kMaxFaults) + " faults are pending: clear them first");
  }
  return {};
}

void Node::ClearFaults() {
  NodeFile& file = *mapping_->file;
  const std::lock_guard lock(mapping_->mutex);
  flock(mapping_->descriptor.get(), LOCK_EX);
  for (FaultRecord& record : file.faults) {
    if (record.armed.exchange(0) != 0) file.armed.fetch_sub(1);
  }
  for (GpuRecord& gpu : file.gpus) {
    if (gpu.lost.exchange(0) != 0) file.armed.fetch_sub(1);
  }
  file.met = 0;
  file.cleared.fetch_add(1);
  flock(mapping_->descriptor.get(), LOCK_UN);
  syscall(SYS_futex, &file.cleared, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Node::RaiseXid(int gpu, std::uint32_t number) {
  NodeFile& file = *mapping_->file;
  file.gpus[gpu].xid = number;
  file.gpus[gpu].xids.fetch_add(1);
  file.xids.fetch_add(1);
  syscall(SYS_futex, &file.xids, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool WaitForXid(NodeFile& file, std::uint32_t seen, std::chrono::milliseconds most) {
  if (file.xids.load() != seen) return true;
  const timespec bound = {.tv_sec = most.count() / 1000,
                          .tv_nsec = (most.count() % 1000) * 1'000'000};
  syscall(SYS_futex, &file.xids, FUTEX_WAIT, seen, &bound, nullptr, 0);
  return file.xids.load() != seen;
}

std::int64_t Node::FaultsMet() const { return mapping_->file->met.load(); }

}  // namespace gpulease::simulated
