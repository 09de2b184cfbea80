// SPDX-License-Identifier: Apache-2.0
#include "driver/gpu_probe.h"

#include <fstream>

namespace gpulease::driver {
namespace {

int Attribute(const CudaDriver& cuda, cuda::CUdevice device, cuda::CUdevice_attribute attribute,
              int otherwise) {
  int value = 0;
  return cuda.cuDeviceGetAttribute(&value, attribute, device) == cuda::CUDA_SUCCESS ? value
                                                                                    : otherwise;
}

// The NUMA node of the PCI device, as the kernel knows it, where the driver is too old to say.
int NumaNodeOfPci(std::string pci_bus_id) {
  for (char& c : pci_bus_id) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  std::ifstream file("/sys/bus/pci/devices/" + pci_bus_id + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

// Why memory cannot be leased from it; empty when it can.
std::string WhyUnsupported(const GpuDescription& gpu, bool integrated) {
  if (!gpu.virtual_memory) return "the driver offers no virtual memory management (cuMemCreate)";
  if (!gpu.posix_fd_export) return "its memory cannot be exported as a file descriptor";
  if (!gpu.unified_addressing) return "it has no unified addressing";
  if (integrated) return "it is integrated: its memory is the host's";
  if (gpu.compute_mode == cuda::CU_COMPUTEMODE_PROHIBITED) {
    return "its compute mode is Prohibited (nvidia-smi -c 0 allows contexts again)";
  }
  return {};
}

}  // namespace

std::string FormatUuid(const cuda::CUuuid& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const unsigned char byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

cuda::CUmemAllocationProp ChunkProperties(int ordinal) {
  cuda::CUmemAllocationProp properties = {};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  return properties;
}

Result<std::vector<GpuDescription>> DescribeGpus(const CudaDriver& cuda, const NvmlDriver* nvml) {
  int count = 0;
  if (const cuda::CUresult result = cuda.cuDeviceGetCount(&count); result != cuda::CUDA_SUCCESS) {
    return cuda.MakeError("cuDeviceGetCount", result);
  }
  std::vector<GpuDescription> gpus;
  std::vector<cuda::CUdevice> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const std::string which = " of device " + std::to_string(ordinal);
    cuda::CUdevice device = 0;
    if (const cuda::CUresult result = cuda.cuDeviceGet(&device, ordinal);
        result != cuda::CUDA_SUCCESS) {
      return cuda.MakeError("cuDeviceGet" + which, result);
    }
    // Without a UUID it cannot even be named.
    cuda::CUuuid uuid = {};
    if (const cuda::CUresult result = cuda.cuDeviceGetUuid(&uuid, device);
        result != cuda::CUDA_SUCCESS) {
      return cuda.MakeError("cuDeviceGetUuid" + which, result);
    }
    GpuDescription gpu;
    gpu.ordinal = ordinal;
    gpu.uuid = FormatUuid(uuid);
    char text[256] = {};
    if (cuda.cuDeviceGetName(text, sizeof text, device) == cuda::CUDA_SUCCESS) gpu.name = text;
    if (cuda.cuDeviceGetPCIBusId(text, sizeof text, device) == cuda::CUDA_SUCCESS) {
      gpu.pci_bus_id = text;
    }
    const auto attribute = [&](cuda::CUdevice_attribute which_one, int otherwise) {
      return Attribute(cuda, device, which_one, otherwise);
    };
    gpu.virtual_memory =
        attribute(cuda::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0) != 0;
    gpu.unified_addressing = attribute(cuda::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0) != 0;
    gpu.posix_fd_export =
        attribute(cuda::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0) != 0;
    gpu.compute_mode = attribute(cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0);
    gpu.compute_major = attribute(cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
    gpu.compute_minor = attribute(cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
    gpu.numa_node = attribute(cuda::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
    if (gpu.numa_node < 0) gpu.numa_node = NumaNodeOfPci(gpu.pci_bus_id);
    gpu.unsupported = WhyUnsupported(gpu, attribute(cuda::CU_DEVICE_ATTRIBUTE_INTEGRATED, 0) != 0);

    std::size_t total = 0;
    if (const cuda::CUresult result = cuda.cuDeviceTotalMem(&total, device);
        result == cuda::CUDA_SUCCESS) {
      gpu.total = total;
    } else if (gpu.unsupported.empty()) {
      gpu.unsupported = cuda.MakeError("cuDeviceTotalMem" + which, result).message;
    }
    if (nvml != nullptr) {
      const Result<GpuMemory> memory = nvml->Memory(gpu.uuid);
      if (memory.ok() && memory->reserved != 0 && memory->total > memory->reserved) {
        gpu.total = memory->total - memory->reserved;
      }
    }
    if (gpu.virtual_memory && gpu.posix_fd_export) {
      const cuda::CUmemAllocationProp properties = ChunkProperties(ordinal);
      std::size_t granularity = 0;
      const cuda::CUresult result = cuda.cuMemGetAllocationGranularity(
          &granularity, &properties, cuda::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
      if (result == cuda::CUDA_SUCCESS) {
        gpu.granularity = granularity;
      } else if (gpu.unsupported.empty()) {
        gpu.unsupported = cuda.MakeError("cuMemGetAllocationGranularity" + which, result).message;
      }
    }
    gpus.push_back(std::move(gpu));
    devices.push_back(device);
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    for (std::size_t j = 0; j < gpus.size(); ++j) {
      int can = 0;
      if (i != j &&
          cuda.cuDeviceCanAccessPeer(&can, devices[i], devices[j]) == cuda::CUDA_SUCCESS &&
          can != 0) {
        gpus[i].peer_uuids.push_back(gpus[j].uuid);
      }
    }
  }
  return gpus;
}

}  // namespace gpulease::driver
