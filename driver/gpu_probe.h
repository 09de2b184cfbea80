// SPDX-License-Identifier: Apache-2.0
//
// GpuProbe: what this machine's GPUs are, and how their memory stands, as the driver says. It needs
// no context, and a GPU is known by its UUID; ordinals are valid within one CudaDriver alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "driver/cuda_driver.h"
#include "driver/nvml_driver.h"

namespace gpulease::driver {

struct GpuDescription {
  int ordinal = 0;   // in cuDeviceGet's order
  std::string uuid;  // "GPU-xxxxxxxx-xxxx-…", as nvidia-smi prints it
  std::string name;
  std::string pci_bus_id;  // "0000:45:00.0"
  Bytes total = 0;         // what cuMemCreate can give when nobody uses the GPU
  Bytes granularity = 0;   // of cuMemCreate with an exportable handle; 0 when not supported
  bool virtual_memory = false;
  bool unified_addressing = false;
  bool posix_fd_export = false;
  int compute_mode = 0;  // CU_COMPUTEMODE_…
  int compute_major = 0;
  int compute_minor = 0;
  int numa_node = -1;  // -1: unknown
  std::vector<std::string> peer_uuids;
  std::string unsupported;  // empty, or why memory cannot be leased from it
};

// "GPU-…" of the 16 bytes.
std::string FormatUuid(const cuda::CUuuid& uuid);

// All GPUs that the driver shows this process. A GPU that cannot be leased from is in the list, and
// says why. Errors: those of CudaDriver::MakeError.
Result<std::vector<GpuDescription>> DescribeGpus(const CudaDriver& cuda, const NvmlDriver* nvml);

// The properties with which a chunk of device memory is made: pinned, on that ordinal, exportable
// as a POSIX descriptor.
cuda::CUmemAllocationProp ChunkProperties(int ordinal);

}  // namespace gpulease::driver
