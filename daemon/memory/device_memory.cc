// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/device_memory.h"

#include "driver/gpu_probe.h"

namespace gpulease::memory {

Result<UniqueFd> DeviceMemory::CreateChunk(
    Bytes bytes, std::vector<cuda::CUmemGenericAllocationHandle>& handles) const {
  const cuda::CUmemAllocationProp properties = driver::ChunkProperties(ordinal_);
  cuda::CUmemGenericAllocationHandle handle = 0;
  cuda::CUresult result = cuda_->cuMemCreate(&handle, bytes, &properties, 0);
  if (result != cuda::CUDA_SUCCESS) {
    return cuda_->MakeError("cuMemCreate of " + FormatBytes(bytes) + " on " + name_, result);
  }
  handles.push_back(handle);
  int fd = -1;
  result = cuda_->cuMemExportToShareableHandle(&fd, handle,
                                               cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != cuda::CUDA_SUCCESS) {
    return cuda_->MakeError(
        "cuMemExportToShareableHandle of " + FormatBytes(bytes) + " on " + name_, result);
  }
  return UniqueFd(fd);
}

void DeviceMemory::Release(const std::vector<cuda::CUmemGenericAllocationHandle>& handles) const {
  // What the driver will not let go of shows as used in its next view, and goes with the process.
  for (const cuda::CUmemGenericAllocationHandle handle : handles) cuda_->cuMemRelease(handle);
}

}  // namespace gpulease::memory
