// SPDX-License-Identifier: Apache-2.0
#include "driver/cuda_driver.h"

#include <cerrno>

#include "driver/shared_library.h"

namespace gpulease::driver {
namespace {

constexpr int kOldestVersion =
    12000;  // CUDA 12.0: the first whose memory functions are as used here

// "13.0" for 13000.
std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

struct Classification {
  Code code;
  Reason reason;
};

Classification Classify(cuda::CUresult result) {
  switch (result) {
    case cuda::CUDA_ERROR_OUT_OF_MEMORY:
      return {Code::kResourceExhausted, Reason::kDriverMemoryShort};
    case cuda::CUDA_ERROR_DEVICE_UNAVAILABLE:
    case cuda::CUDA_ERROR_ECC_UNCORRECTABLE:
    case cuda::CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case cuda::CUDA_ERROR_CONTAINED:
    case cuda::CUDA_ERROR_ILLEGAL_ADDRESS:
    case cuda::CUDA_ERROR_LAUNCH_TIMEOUT:
    case cuda::CUDA_ERROR_HARDWARE_STACK_ERROR:
    case cuda::CUDA_ERROR_LAUNCH_FAILED:
    case cuda::CUDA_ERROR_SYSTEM_NOT_READY:
      return {Code::kUnavailable, Reason::kGpuUnavailable};
    case cuda::CUDA_ERROR_OPERATING_SYSTEM:
      // The driver keeps errno of the call that failed to itself. In what gpulease calls it is a
      // descriptor that could not be made.
      return {Code::kResourceExhausted, Reason::kDescriptorLimit};
    case cuda::CUDA_ERROR_NOT_PERMITTED:
    case cuda::CUDA_ERROR_NOT_SUPPORTED:
    case cuda::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return {Code::kFailedPrecondition, Reason::kUnsupported};
    default:
      return {Code::kInternal, Reason::kDriver};
  }
}

}  // namespace

Result<std::shared_ptr<const CudaDriver>> CudaDriver::Load(const DriverChoice& choice) {
  Result<SharedLibrary> library = SharedLibrary::Load(choice, "libcuda.so.1");
  if (!library.ok()) return std::move(library).error();

  std::shared_ptr<CudaDriver> driver(new CudaDriver);
  driver->simulated_ = !choice.simulated_directory.empty();

  // The version first: a library that is too old says so better than by the function it lacks.
  const auto get_version =
      reinterpret_cast<decltype(driver->cuDriverGetVersion)>(library->Find("cuDriverGetVersion"));
  std::string version_note = "gpulease needs a driver of CUDA " + VersionText(kOldestVersion) +
                             " or newer: update the NVIDIA driver";
  if (get_version != nullptr && get_version(&driver->version_) == cuda::CUDA_SUCCESS) {
    if (driver->version_ < kOldestVersion) {
      return gpulease::MakeError(
          Code::kFailedPrecondition, Reason::kUnsupported,
          library->name() + " is of CUDA " + VersionText(driver->version_) + "; " + version_note);
    }
    version_note = "it is of CUDA " + VersionText(driver->version_) + "; " + version_note;
  }

#define GPULEASE_CUDA_FUNCTION(name, symbol, ...)                                 \
  driver->name = reinterpret_cast<decltype(driver->name)>(library->Find(symbol)); \
  if (driver->name == nullptr) return library->MissingFunction(symbol, version_note);
#include "driver/cuda_functions.inc"
#undef GPULEASE_CUDA_FUNCTION

  if (const cuda::CUresult result = driver->cuInit(0); result != cuda::CUDA_SUCCESS) {
    Error error = driver->MakeError("cuInit in " + library->name(), result);
    error.code = Code::kUnavailable;
    error.reason = Reason::kDriver;
    error.message += ". Look at nvidia-smi, and whether /dev/nvidia* is there and may be opened";
    return error;
  }
  return std::shared_ptr<const CudaDriver>(std::move(driver));
}

Error CudaDriver::MakeError(std::string_view what, cuda::CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  std::string message(what);
  message += ": ";
  if (cuGetErrorName != nullptr && cuGetErrorName(result, &name) == cuda::CUDA_SUCCESS &&
      name != nullptr) {
    message += name;
  } else {
    message += "CUDA error " + std::to_string(static_cast<unsigned int>(result));
  }
  if (cuGetErrorString != nullptr && cuGetErrorString(result, &text) == cuda::CUDA_SUCCESS &&
      text != nullptr) {
    message += std::string(" (") + text + ")";
  }
  const Classification classification = Classify(result);
  return gpulease::MakeError(classification.code, classification.reason, std::move(message));
}

}  // namespace gpulease::driver
