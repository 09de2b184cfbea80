// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/device_memory.h"

#include "driver/gpu_probe.h"

namespace gpulease::memory {

Result<UniqueFd> DeviceMemory::CreateChunk(Bytes bytes) const {
  const cuda::CUmemAllocationProp properties = driver::ChunkProperties(ordinal_);
  cuda::CUmemGenericAllocationHandle handle = 0;
  cuda::CUresult result = cuda_->cuMemCreate(&handle, bytes, &properties, 0);
  if (result != cuda::CUDA_SUCCESS) {
    return cuda_->MakeError("cuMemCreate of " + FormatBytes(bytes) + " on " + name_, result);
  }
  int fd = -1;
  result = cuda_->cuMemExportToShareableHandle(&fd, handle,
                                               cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  const cuda::CUresult released = cuda_->cuMemRelease(handle);
  UniqueFd chunk(result == cuda::CUDA_SUCCESS ? fd : -1);
  if (result != cuda::CUDA_SUCCESS) {
    return cuda_->MakeError(
        "cuMemExportToShareableHandle of " + FormatBytes(bytes) + " on " + name_, result);
  }
  if (released != cuda::CUDA_SUCCESS) return cuda_->MakeError("cuMemRelease on " + name_, released);
  return chunk;
}

}  // namespace gpulease::memory
