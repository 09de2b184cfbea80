// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/memory/cuda_process.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "driver/gpu_probe.h"

namespace gpulease {
namespace {

struct Loaded {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const CudaProcess>> by_directory;  // under mutex
};

// Never destroyed: mappings of static storage are unmapped late.
Loaded& TheLoaded() {
  static Loaded* const loaded = new Loaded;
  return *loaded;
}

}  // namespace

driver::DriverChoice DriverOf(const handle::Welcome& welcome) {
  if ((welcome.flags & handle::kWelcomeSimulated) == 0) return {};
  const char* directory = welcome.simulated_directory;
  return {.simulated_directory =
              std::string(directory, strnlen(directory, sizeof welcome.simulated_directory))};
}

Result<std::shared_ptr<const CudaProcess>> CudaProcess::Get(const driver::DriverChoice& choice) {
  Loaded& loaded = TheLoaded();
  std::lock_guard lock(loaded.mutex);
  auto at = loaded.by_directory.find(choice.simulated_directory);
  if (at != loaded.by_directory.end()) return at->second;
  auto cuda = driver::CudaDriver::Load(choice);
  if (!cuda.ok()) return std::move(cuda).error();
  std::shared_ptr<CudaProcess> process(new CudaProcess);
  process->cuda_ = *cuda;
  int count = 0;
  if (auto result = (*cuda)->cuDeviceGetCount(&count); result != cuda::CUDA_SUCCESS) {
    return (*cuda)->MakeError("cuDeviceGetCount", result);
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cuda::CUdevice device = 0;
    cuda::CUuuid uuid{};
    auto result = (*cuda)->cuDeviceGet(&device, ordinal);
    if (result == cuda::CUDA_SUCCESS) result = (*cuda)->cuDeviceGetUuid(&uuid, device);
    if (result != cuda::CUDA_SUCCESS) {
      return (*cuda)->MakeError("cuDeviceGetUuid of GPU " + std::to_string(ordinal), result);
    }
    process->uuids_.push_back(driver::FormatUuid(uuid));
  }
  loaded.by_directory.emplace(choice.simulated_directory, process);
  return std::shared_ptr<const CudaProcess>(process);
}

std::shared_ptr<const CudaProcess> CudaProcess::IfLoaded(const driver::DriverChoice& choice) {
  Loaded& loaded = TheLoaded();
  std::lock_guard lock(loaded.mutex);
  auto at = loaded.by_directory.find(choice.simulated_directory);
  return at == loaded.by_directory.end() ? nullptr : at->second;
}

bool CudaProcess::ThreadHasContext(const driver::DriverChoice& choice) {
  cuda::CUcontext context = nullptr;
  if (auto process = IfLoaded(choice)) {
    return process->cuda().cuCtxGetCurrent(&context) == cuda::CUDA_SUCCESS && context != nullptr;
  }
  if (!choice.simulated_directory.empty()) return false;
  // The program's own libcuda, if it has one: asking it initialises nothing.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return false;
  using GetCurrent = cuda::CUresult (*)(cuda::CUcontext*);
  auto get_current = reinterpret_cast<GetCurrent>(dlsym(library, "cuCtxGetCurrent"));
  const bool has = get_current && get_current(&context) == cuda::CUDA_SUCCESS && context != nullptr;
  dlclose(library);
  return has;
}

int CudaProcess::Ordinal(const std::string& uuid) const {
  for (std::size_t i = 0; i < uuids_.size(); ++i) {
    if (uuids_[i] == uuid) return static_cast<int>(i);
  }
  return -1;
}

Result<int> CudaProcess::VisibleOrdinal(const std::string& uuid) const {
  if (const int ordinal = Ordinal(uuid); ordinal >= 0) return ordinal;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string seen;
  for (const std::string& other : uuids_) seen += (seen.empty() ? "" : ", ") + other;
  return MakeError(Code::kFailedPrecondition, Reason::kNoSuchGpu,
                   uuid + " is not visible to this process (CUDA_VISIBLE_DEVICES=" +
                       (visible ? visible : "unset") + "; it sees " +
                       (seen.empty() ? "no GPU" : seen) +
                       "): make it visible, or ask for memory on a GPU that is");
}

}  // namespace gpulease
