// SPDX-License-Identifier: Apache-2.0
//
// NVML of the simulated node. It shows all GPUs, whatever CUDA_VISIBLE_DEVICES says.
#include <signal.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "driver/gpu_probe.h"
#include "driver/simulated/exports.h"
#include "driver/simulated/process_state.h"

namespace gpulease {

using namespace simulated;  // NOLINT: the functions must lie in gpulease to be exports.h's

namespace {

// A device is its index + 1, as a pointer.
int GpuOfDevice(nvml::nvmlDevice_t device) {
  const std::uintptr_t number = reinterpret_cast<std::uintptr_t>(device);
  const NodeMapping* node = State().node.load();
  return node != nullptr && number >= 1 && number <= node->file->gpu_count
             ? static_cast<int>(number) - 1
             : -1;
}

nvml::nvmlReturn_t EnterNvml(std::uint64_t function, int gpu) {
  ProcessState& state = State();
  if (state.forked.load() || !state.nvml_ready.load(std::memory_order_acquire)) {
    return nvml::NVML_ERROR_UNINITIALIZED;
  }
  NodeFile& file = *state.node.load(std::memory_order_acquire)->file;
  if (file.armed.load(std::memory_order_relaxed) == 0) return nvml::NVML_SUCCESS;
  const Meeting meeting = MeetFaults(file, function, gpu);
  if (meeting.code.has_value()) return static_cast<nvml::nvmlReturn_t>(*meeting.code);
  return meeting.lost ? nvml::NVML_ERROR_GPU_IS_LOST : nvml::NVML_SUCCESS;
}

#define GPULEASE_ENTER_NVML(function, gpu)                            \
  do {                                                                \
    constexpr std::uint64_t kFunction = FunctionId(#function);        \
    if (const nvml::nvmlReturn_t entered = EnterNvml(kFunction, gpu); \
        entered != nvml::NVML_SUCCESS) {                              \
      return entered;                                                 \
    }                                                                 \
  } while (false)

nvml::nvmlReturn_t ListProcesses(int gpu, unsigned int* count, nvml::nvmlProcessInfo_t* listed) {
  if (gpu < 0 || count == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  unsigned int found = 0;
  for (ProcessRecord& record : State().node.load()->file->processes) {
    const std::int32_t pid = record.pid.load();
    if (pid == 0 || record.gpu.load() != gpu) continue;
    if (kill(pid, 0) != 0 && errno == ESRCH) continue;
    if (found < *count && listed != nullptr) {
      listed[found] = {static_cast<unsigned int>(pid), record.used.load(), ~0u, ~0u};
    }
    ++found;
  }
  const bool fits = found <= *count;
  *count = found;
  return fits ? nvml::NVML_SUCCESS : nvml::NVML_ERROR_INSUFFICIENT_SIZE;
}

// What an nvmlEventSet_t points to.
struct EventSet {
  std::array<bool, kMaxGpus> registered{};
  std::array<std::uint64_t, kMaxGpus> seen{};  // how many of the GPU's
};

EventSet* SetOf(nvml::nvmlEventSet_t set) { return reinterpret_cast<EventSet*>(set); }

}  // namespace

nvml::nvmlReturn_t nvmlInit_v2() {
  ProcessState& state = State();
  if (state.forked.load() || state.node.load() == nullptr) {
    return nvml::NVML_ERROR_DRIVER_NOT_LOADED;
  }
  NodeFile& file = *state.node.load()->file;
  if (file.armed.load(std::memory_order_relaxed) != 0) {
    const Meeting meeting = MeetFaults(file, FunctionId("nvmlInit_v2"), -1);
    if (meeting.code.has_value()) return static_cast<nvml::nvmlReturn_t>(*meeting.code);
  }
  state.nvml_ready.store(true, std::memory_order_release);
  return nvml::NVML_SUCCESS;
}

nvml::nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  GPULEASE_ENTER_NVML(nvmlSystemGetDriverVersion, -1);
  if (version == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  if (length < sizeof kDriverVersion) return nvml::NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(version, kDriverVersion, sizeof kDriverVersion);
  return nvml::NVML_SUCCESS;
}

const char* nvmlErrorString(nvml::nvmlReturn_t result) {
  switch (result) {
#define GPULEASE_NVML_RESULT(name, value, words) \
  case nvml::name:                               \
    return words;
    GPULEASE_NVML_RESULTS(GPULEASE_NVML_RESULT)
#undef GPULEASE_NVML_RESULT
  }
  return "Unknown Error";
}

nvml::nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvml::nvmlDevice_t* device) {
  GPULEASE_ENTER_NVML(nvmlDeviceGetHandleByUUID, -1);
  if (uuid == nullptr || device == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  const NodeFile& file = *State().node.load()->file;
  for (std::uint32_t gpu = 0; gpu < file.gpu_count; ++gpu) {
    if (file.gpus[gpu].absent.load() == 0 &&
        driver::FormatUuid(NodeUuid(file, static_cast<int>(gpu))) == uuid) {
      *device = reinterpret_cast<nvml::nvmlDevice_t>(static_cast<std::uintptr_t>(gpu) + 1);
      return nvml::NVML_SUCCESS;
    }
  }
  return nvml::NVML_ERROR_NOT_FOUND;
}

nvml::nvmlReturn_t nvmlDeviceGetMemoryInfo(nvml::nvmlDevice_t device, nvml::nvmlMemory_t* memory) {
  const int gpu = GpuOfDevice(device);
  GPULEASE_ENTER_NVML(nvmlDeviceGetMemoryInfo, gpu);
  if (gpu < 0 || memory == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  const NodeMapping& node = *State().node.load();
  const GpuRecord& record = node.file->gpus[gpu];
  memory->total = record.capacity + kReserved;
  memory->used = node.Recorded(gpu) + record.outside.load() + kReserved;
  memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
  return nvml::NVML_SUCCESS;
}

nvml::nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvml::nvmlDevice_t device,
                                              nvml::nvmlMemory_v2_t* memory) {
  const int gpu = GpuOfDevice(device);
  GPULEASE_ENTER_NVML(nvmlDeviceGetMemoryInfo_v2, gpu);
  if (gpu < 0 || memory == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  if (memory->version != nvml::kMemoryV2) return nvml::NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const NodeMapping& node = *State().node.load();
  const GpuRecord& record = node.file->gpus[gpu];
  memory->total = record.capacity + kReserved;
  memory->reserved = kReserved;
  memory->used = node.Recorded(gpu) + record.outside.load();
  memory->free = memory->used < record.capacity ? record.capacity - memory->used : 0;
  return nvml::NVML_SUCCESS;
}

nvml::nvmlReturn_t nvmlDeviceGetUtilizationRates(nvml::nvmlDevice_t device,
                                                 nvml::nvmlUtilization_t* utilization) {
  const int gpu = GpuOfDevice(device);
  GPULEASE_ENTER_NVML(nvmlDeviceGetUtilizationRates, gpu);
  if (gpu < 0 || utilization == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  utilization->gpu = State().node.load()->file->gpus[gpu].utilization.load();
  utilization->memory = utilization->gpu / 2;
  return nvml::NVML_SUCCESS;
}

nvml::nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvml::nvmlDevice_t device,
                                                           unsigned int* count,
                                                           nvml::nvmlProcessInfo_t* processes) {
  const int gpu = GpuOfDevice(device);
  GPULEASE_ENTER_NVML(nvmlDeviceGetComputeRunningProcesses_v3, gpu);
  return ListProcesses(gpu, count, processes);
}

nvml::nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvml::nvmlDevice_t device,
                                                           unsigned int* count,
                                                           nvml::nvmlProcessInfo_t* processes) {
  const int gpu = GpuOfDevice(device);
  GPULEASE_ENTER_NVML(nvmlDeviceGetComputeRunningProcesses_v2, gpu);
  return ListProcesses(gpu, count, processes);
}

nvml::nvmlReturn_t nvmlEventSetCreate(nvml::nvmlEventSet_t* set) {
  GPULEASE_ENTER_NVML(nvmlEventSetCreate, -1);
  if (set == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  *set = reinterpret_cast<nvml::nvmlEventSet_t>(new EventSet);
  return nvml::NVML_SUCCESS;
}

nvml::nvmlReturn_t nvmlDeviceRegisterEvents(nvml::nvmlDevice_t device, unsigned long long types,
                                            nvml::nvmlEventSet_t set) {
  const int gpu = GpuOfDevice(device);
  GPULEASE_ENTER_NVML(nvmlDeviceRegisterEvents, gpu);
  if (gpu < 0 || set == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  if (types != nvml::kEventTypeXidCriticalError) return nvml::NVML_ERROR_NOT_SUPPORTED;
  SetOf(set)->registered[static_cast<std::size_t>(gpu)] = true;
  SetOf(set)->seen[static_cast<std::size_t>(gpu)] = State().node.load()->file->gpus[gpu].xids;
  return nvml::NVML_SUCCESS;
}

nvml::nvmlReturn_t nvmlEventSetWait_v2(nvml::nvmlEventSet_t set, nvml::nvmlEventData_t* data,
                                       unsigned int timeout_ms) {
  GPULEASE_ENTER_NVML(nvmlEventSetWait_v2, -1);
  if (set == nullptr || data == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  NodeFile& file = *State().node.load()->file;
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const std::uint32_t all = file.xids.load();
    for (std::size_t gpu = 0; gpu < file.gpu_count; ++gpu) {
      const std::uint64_t there = file.gpus[gpu].xids.load();
      if (!SetOf(set)->registered[gpu] || there == SetOf(set)->seen[gpu]) continue;
      SetOf(set)->seen[gpu] = there;
      *data = {};
      data->device = reinterpret_cast<nvml::nvmlDevice_t>(gpu + 1);
      data->eventType = nvml::kEventTypeXidCriticalError;
      data->eventData = file.gpus[gpu].xid.load();
      return nvml::NVML_SUCCESS;
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return nvml::NVML_ERROR_TIMEOUT;
    WaitForXid(file, all, left);
  }
}

nvml::nvmlReturn_t nvmlEventSetFree(nvml::nvmlEventSet_t set) {
  delete SetOf(set);
  return nvml::NVML_SUCCESS;
}

}  // namespace gpulease
