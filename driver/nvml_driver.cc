// SPDX-License-Identifier: Apache-2.0
#include "driver/nvml_driver.h"

#include <map>
#include <mutex>

#include "driver/nvml_abi.h"
#include "driver/shared_library.h"

namespace gpulease::driver {

struct NvmlDriver::Impl {
#define GPULEASE_NVML_FUNCTION(name, required, type, ...) type (*name)(__VA_ARGS__) = nullptr;
#include "driver/nvml_functions.inc"
#undef GPULEASE_NVML_FUNCTION

  std::string driver_version;
  std::mutex mutex;
  std::map<std::string, nvml::nvmlDevice_t> devices;  // by UUID; under mutex

  Error MakeError(const std::string& what, nvml::nvmlReturn_t result) const {
    Code code = Code::kInternal;
    Reason reason = Reason::kDriver;
    switch (result) {
      case nvml::NVML_ERROR_NOT_FOUND:
        code = Code::kNotFound;
        reason = Reason::kNoSuchGpu;
        break;
      case nvml::NVML_ERROR_GPU_IS_LOST:
      case nvml::NVML_ERROR_RESET_REQUIRED:
        code = Code::kUnavailable;
        reason = Reason::kGpuUnavailable;
        break;
      case nvml::NVML_ERROR_NOT_SUPPORTED:
      case nvml::NVML_ERROR_NO_PERMISSION:
        code = Code::kFailedPrecondition;
        reason = Reason::kUnsupported;
        break;
      default:
        break;
    }
    const char* text = nvmlErrorString(result);
    return gpulease::MakeError(code, reason,
                               what + ": NVML error " +
                                   std::to_string(static_cast<unsigned int>(result)) + " (" +
                                   (text != nullptr ? text : "unknown") + ")");
  }

  Result<nvml::nvmlDevice_t> Device(const std::string& uuid) {
    const std::lock_guard lock(mutex);
    if (const auto known = devices.find(uuid); known != devices.end()) return known->second;
    nvml::nvmlDevice_t device = nullptr;
    const nvml::nvmlReturn_t result = nvmlDeviceGetHandleByUUID(uuid.c_str(), &device);
    if (result == nvml::NVML_ERROR_INVALID_ARGUMENT) {  // what some versions say of a foreign UUID
      return MakeError("nvmlDeviceGetHandleByUUID of " + uuid, nvml::NVML_ERROR_NOT_FOUND);
    }
    if (result != nvml::NVML_SUCCESS) {
      return MakeError("nvmlDeviceGetHandleByUUID of " + uuid, result);
    }
    devices.emplace(uuid, device);
    return device;
  }
};

Result<std::shared_ptr<const NvmlDriver>> NvmlDriver::Load(const DriverChoice& choice) {
  Result<SharedLibrary> library = SharedLibrary::Load(choice, "libnvidia-ml.so.1");
  if (!library.ok()) return std::move(library).error();

  const auto impl = std::make_shared<Impl>();
  constexpr std::string_view kNeeded = "gpulease needs the NVML of a driver of CUDA 12.0 or newer";
#define GPULEASE_NVML_FUNCTION(name, required, type, ...)                    \
  impl->name = reinterpret_cast<decltype(impl->name)>(library->Find(#name)); \
  if (required && impl->name == nullptr) return library->MissingFunction(#name, kNeeded);
#include "driver/nvml_functions.inc"
#undef GPULEASE_NVML_FUNCTION
  if (impl->nvmlDeviceGetComputeRunningProcesses_v3 == nullptr) {
    impl->nvmlDeviceGetComputeRunningProcesses_v3 = impl->nvmlDeviceGetComputeRunningProcesses_v2;
  }
  if (impl->nvmlDeviceGetComputeRunningProcesses_v3 == nullptr) {
    return library->MissingFunction("nvmlDeviceGetComputeRunningProcesses_v2", kNeeded);
  }

  if (const nvml::nvmlReturn_t result = impl->nvmlInit_v2(); result != nvml::NVML_SUCCESS) {
    Error error = impl->MakeError("nvmlInit_v2 in " + library->name(), result);
    error.code = Code::kUnavailable;
    error.reason = Reason::kDriver;
    return error;
  }
  char version[96] = {};  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE is 80
  if (impl->nvmlSystemGetDriverVersion(version, sizeof version) == nvml::NVML_SUCCESS) {
    impl->driver_version = version;
  }
  std::shared_ptr<NvmlDriver> driver(new NvmlDriver);
  driver->impl_ = impl;
  return std::shared_ptr<const NvmlDriver>(std::move(driver));
}

Result<GpuMemory> NvmlDriver::Memory(const std::string& uuid) const {
  Result<nvml::nvmlDevice_t> device = impl_->Device(uuid);
  if (!device.ok()) return std::move(device).error();
  if (impl_->nvmlDeviceGetMemoryInfo_v2 != nullptr) {
    nvml::nvmlMemory_v2_t memory = {};
    memory.version = nvml::kMemoryV2;
    const nvml::nvmlReturn_t result = impl_->nvmlDeviceGetMemoryInfo_v2(*device, &memory);
    if (result == nvml::NVML_SUCCESS) return GpuMemory{memory.total, memory.reserved, memory.used};
    if (result != nvml::NVML_ERROR_ARGUMENT_VERSION_MISMATCH &&
        result != nvml::NVML_ERROR_FUNCTION_NOT_FOUND) {
      return impl_->MakeError("nvmlDeviceGetMemoryInfo_v2 of " + uuid, result);
    }
  }
  // The old query counts what the driver has reserved as used, and does not say how much that is.
  nvml::nvmlMemory_t memory = {};
  const nvml::nvmlReturn_t result = impl_->nvmlDeviceGetMemoryInfo(*device, &memory);
  if (result != nvml::NVML_SUCCESS) {
    return impl_->MakeError("nvmlDeviceGetMemoryInfo of " + uuid, result);
  }
  return GpuMemory{memory.total, 0, memory.used};
}

Result<int> NvmlDriver::UtilizationPercent(const std::string& uuid) const {
  Result<nvml::nvmlDevice_t> device = impl_->Device(uuid);
  if (!device.ok()) return std::move(device).error();
  nvml::nvmlUtilization_t utilization = {};
  const nvml::nvmlReturn_t result = impl_->nvmlDeviceGetUtilizationRates(*device, &utilization);
  if (result != nvml::NVML_SUCCESS) {
    return impl_->MakeError("nvmlDeviceGetUtilizationRates of " + uuid, result);
  }
  return static_cast<int>(utilization.gpu);
}

Result<std::vector<GpuProcess>> NvmlDriver::Processes(const std::string& uuid) const {
  Result<nvml::nvmlDevice_t> device = impl_->Device(uuid);
  if (!device.ok()) return std::move(device).error();
  std::vector<nvml::nvmlProcessInfo_t> listed(32);
  nvml::nvmlReturn_t result = nvml::NVML_ERROR_INSUFFICIENT_SIZE;
  unsigned int count = 0;
  // More processes may come between one call and the next; 2^16 is beyond any node.
  while (result == nvml::NVML_ERROR_INSUFFICIENT_SIZE && listed.size() <= 65536) {
    count = static_cast<unsigned int>(listed.size());
    result = impl_->nvmlDeviceGetComputeRunningProcesses_v3(*device, &count, listed.data());
    if (result == nvml::NVML_ERROR_INSUFFICIENT_SIZE) listed.resize(listed.size() * 4);
  }
  if (result != nvml::NVML_SUCCESS) {
    return impl_->MakeError("nvmlDeviceGetComputeRunningProcesses of " + uuid, result);
  }
  std::vector<GpuProcess> processes;
  for (unsigned int i = 0; i < count; ++i) {
    const Bytes used = listed[i].usedGpuMemory;
    processes.push_back(
        {static_cast<int>(listed[i].pid), used == nvml::kValueNotAvailable ? 0 : used});
  }
  return processes;
}

struct XidEvents::State {
  std::shared_ptr<const NvmlDriver> nvml;
  nvml::nvmlEventSet_t set = nullptr;
  std::map<nvml::nvmlDevice_t, std::string> uuids;

  ~State() {
    if (set != nullptr) nvml->impl_->nvmlEventSetFree(set);
  }
};

Result<XidEvents> XidEvents::Open(std::shared_ptr<const NvmlDriver> nvml,
                                  const std::vector<std::string>& uuids) {
  const auto state = std::make_shared<State>();
  state->nvml = std::move(nvml);
  NvmlDriver::Impl& impl = *state->nvml->impl_;
  nvml::nvmlReturn_t result = impl.nvmlEventSetCreate(&state->set);
  if (result != nvml::NVML_SUCCESS) {
    state->set = nullptr;
    return impl.MakeError("nvmlEventSetCreate", result);
  }
  for (const std::string& uuid : uuids) {
    const Result<nvml::nvmlDevice_t> device = impl.Device(uuid);
    if (!device.ok()) continue;
    const nvml::nvmlReturn_t registered =
        impl.nvmlDeviceRegisterEvents(*device, nvml::kEventTypeXidCriticalError, state->set);
    if (registered == nvml::NVML_SUCCESS) {
      state->uuids.emplace(*device, uuid);
    } else {
      result = registered;
    }
  }
  if (state->uuids.empty()) {
    return impl.MakeError("nvmlDeviceRegisterEvents",
                          result == nvml::NVML_SUCCESS ? nvml::NVML_ERROR_NOT_SUPPORTED : result);
  }
  return XidEvents(state);
}

Result<std::optional<Xid>> XidEvents::Wait(std::chrono::milliseconds most) {
  nvml::nvmlEventData_t data = {};
  const NvmlDriver::Impl& impl = *state_->nvml->impl_;
  const nvml::nvmlReturn_t result =
      impl.nvmlEventSetWait_v2(state_->set, &data, static_cast<unsigned int>(most.count()));
  if (result == nvml::NVML_ERROR_TIMEOUT) return std::optional<Xid>();
  if (result != nvml::NVML_SUCCESS) return impl.MakeError("nvmlEventSetWait_v2", result);
  const auto known = state_->uuids.find(data.device);
  if (data.eventType != nvml::kEventTypeXidCriticalError || known == state_->uuids.end())
    return std::optional<Xid>();
  return std::optional(Xid{known->second, data.eventData});
}

std::string NvmlDriver::driver_version() const { return impl_->driver_version; }

}  // namespace gpulease::driver
