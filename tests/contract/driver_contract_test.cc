// SPDX-License-Identifier: Apache-2.0
//
// What gpulease builds on, of any driver: the simulated one, and with GPULEASE_CONTRACT_DRIVER=real
// the machine's own. A test that passes on one of them alone is a fault of the simulation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "driver/cuda_driver.h"
#include "driver/gpu_probe.h"
#include "driver/nvml_driver.h"
#include "driver/simulated/simulated.h"
#include "tests/contract/driver_peer.h"

namespace gpulease {
namespace {

using driver::ChunkProperties;
using driver::CudaDriver;
using driver::NvmlDriver;
using ::testing::AnyOf;
using testing::ChosenDriver;
using testing::DriverPeer;
using testing::Eventually;

constexpr Bytes kChunk = 64 * kMiB;
constexpr Bytes kLarge = kGiB;  // stands out of whatever else happens on a real GPU

std::shared_ptr<const CudaDriver> Cuda() {
  static const std::shared_ptr<const CudaDriver> cuda = CudaDriver::Load(ChosenDriver()).value();
  return cuda;
}

std::shared_ptr<const NvmlDriver> Nvml() {
  static const std::shared_ptr<const NvmlDriver> nvml = NvmlDriver::Load(ChosenDriver()).value();
  return nvml;
}

const std::vector<driver::GpuDescription>& Gpus() {
  static const std::vector<driver::GpuDescription> gpus =
      driver::DescribeGpus(*Cuda(), Nvml().get()).value();
  return gpus;
}

std::string Name(cuda::CUresult result) {
  const char* name = nullptr;
  Cuda()->cuGetErrorName(result, &name);
  return name != nullptr ? name : "?";
}

#define EXPECT_CUDA(expected, call) EXPECT_EQ(#expected, Name(call))
#define ASSERT_CUDA(expected, call) ASSERT_EQ(#expected, Name(call))

using Handle = cuda::CUmemGenericAllocationHandle;

// Both set on a chunk of `size` on GPU 0.
cuda::CUresult Create(Handle* handle, Bytes size) {
  const cuda::CUmemAllocationProp properties = ChunkProperties(0);
  return Cuda()->cuMemCreate(handle, size, &properties, 0);
}

UniqueFd Export(Handle handle) {
  int descriptor = -1;
  const cuda::CUresult result = Cuda()->cuMemExportToShareableHandle(
      &descriptor, handle, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  EXPECT_CUDA(CUDA_SUCCESS, result);
  return UniqueFd(result == cuda::CUDA_SUCCESS ? descriptor : -1);
}

cuda::CUresult Import(Handle* handle, int descriptor) {
  return Cuda()->cuMemImportFromShareableHandle(
      handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor)),
      cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

cuda::CUresult Grant(cuda::CUdeviceptr address, Bytes size, cuda::CUmemAccess_flags flags) {
  cuda::CUmemAccessDesc access = {};
  access.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, 0};
  access.flags = flags;
  return Cuda()->cuMemSetAccess(address, size, &access, 1);
}

// A chunk that only its exported descriptor holds.
UniqueFd LoneDescriptor(Bytes size) {
  Handle handle = 0;
  const cuda::CUresult created = Create(&handle, size);
  EXPECT_CUDA(CUDA_SUCCESS, created);
  if (created != cuda::CUDA_SUCCESS) return UniqueFd();
  UniqueFd descriptor = Export(handle);
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemRelease(handle));
  return descriptor;
}

Bytes Used() { return Nvml()->Memory(Gpus()[0].uuid).value().used; }

// GPU 0's primary context, current as long as this lives. It stays retained: making one anew takes
// a real GPU a quarter of a second.
class ScopedContext {
 public:
  ScopedContext() {
    static cuda::CUcontext context = [] {
      cuda::CUcontext retained = nullptr;
      EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuDevicePrimaryCtxRetain(&retained, 0));
      return retained;
    }();
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuCtxPushCurrent(context));
  }
  ~ScopedContext() { EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuCtxPopCurrent(nullptr)); }
};

// A chunk mapped at an address of its own.
struct Mapped {
  Handle handle = 0;
  cuda::CUdeviceptr address = 0;
  Bytes size = 0;

  Mapped(Handle chunk, Bytes bytes, cuda::CUmemAccess_flags flags) : handle(chunk), size(bytes) {
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemAddressReserve(&address, size, 0, 0, 0));
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemMap(address, size, 0, handle, 0));
    if (flags != cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE) {
      EXPECT_CUDA(CUDA_SUCCESS, Grant(address, size, flags));
    }
  }
  ~Mapped() {
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemUnmap(address, size));
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemAddressFree(address, size));
  }
};

TEST(DriverContract, GivesEveryGpuAUuidAsNvidiaSmiPrintsIt) {
  ASSERT_FALSE(Gpus().empty());
  for (const driver::GpuDescription& gpu : Gpus()) {
    ASSERT_EQ(gpu.uuid.size(), 40u) << gpu.uuid;
    EXPECT_EQ(gpu.uuid.substr(0, 4), "GPU-");
    for (std::size_t i = 4; i < gpu.uuid.size(); ++i) {
      const bool dash = i == 12 || i == 17 || i == 22 || i == 27;
      EXPECT_TRUE(dash ? gpu.uuid[i] == '-' : std::isxdigit(gpu.uuid[i]) != 0) << gpu.uuid;
    }
    EXPECT_TRUE(Nvml()->Memory(gpu.uuid).ok()) << "NVML must know it by the same name";
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_EQ(gpu.pci_bus_id.size(), 12u) << gpu.pci_bus_id;
  }
}

TEST(DriverContract, OffersWhatLeasingNeeds) {
  for (const driver::GpuDescription& gpu : Gpus()) {
    EXPECT_EQ(gpu.unsupported, "");
    EXPECT_TRUE(gpu.virtual_memory);
    EXPECT_TRUE(gpu.posix_fd_export);
    EXPECT_TRUE(gpu.unified_addressing);
    EXPECT_EQ(gpu.granularity, 2 * kMiB);
    const driver::GpuMemory memory = Nvml()->Memory(gpu.uuid).value();
    EXPECT_GT(gpu.total, 0u);
    EXPECT_LE(gpu.total, memory.total);
    EXPECT_LE(memory.used, memory.total);
  }
  EXPECT_GE(Cuda()->version(), 12000);
  EXPECT_FALSE(Nvml()->driver_version().empty());
}

TEST(DriverContract, DoesNotKnowAForeignUuid) {
  const Result<driver::GpuMemory> memory =
      Nvml()->Memory("GPU-00000000-0000-0000-0000-000000000000");
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.error().code, Code::kNotFound);
  EXPECT_EQ(memory.error().reason, Reason::kNoSuchGpu);
}

TEST(DriverContract, CreatesExportsAndImportsWithoutAContext) {
  DriverPeer maker;
  UniqueFd descriptor;
  EXPECT_EQ(maker.Ask("create " + std::to_string(kChunk)), "CUDA_SUCCESS");
  EXPECT_EQ(maker.Ask("export", -1, &descriptor), "CUDA_SUCCESS");
  EXPECT_EQ(maker.Ask("release"), "CUDA_SUCCESS");
  EXPECT_EQ(maker.Ask("import " + std::to_string(kChunk), descriptor.get()), "CUDA_SUCCESS");
  EXPECT_EQ(maker.Ask("context"), "none");
}

TEST(DriverContract, HandsOutMemoryThatReadsAsZeros) {
  const ScopedContext context;
  for (int round = 0; round < 2; ++round) {  // the second may get what the first has filled
    Handle handle = 0;
    ASSERT_CUDA(CUDA_SUCCESS, Create(&handle, kChunk));
    const Mapped mapped(handle, kChunk, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    std::vector<unsigned char> bytes(kChunk, 1);
    ASSERT_CUDA(CUDA_SUCCESS, Cuda()->cuMemcpyDtoH(bytes.data(), mapped.address, kChunk));
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0), static_cast<std::ptrdiff_t>(kChunk));
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemsetD8(mapped.address, 0xee, kChunk));
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemRelease(handle));
  }
}

TEST(DriverContract, KeepsContentsForAnotherProcessWhenOnlyTheDescriptorIsLeft) {
  UniqueFd descriptor;
  {
    const ScopedContext context;
    Handle handle = 0;
    ASSERT_CUDA(CUDA_SUCCESS, Create(&handle, kChunk));
    descriptor = Export(handle);
    const Mapped mapped(handle, kChunk, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemsetD8(mapped.address, 0x5a, kChunk));
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuCtxSynchronize());
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemRelease(handle));
  }
  {
    DriverPeer killed;
    EXPECT_EQ(killed.Ask("import " + std::to_string(kChunk), descriptor.get()), "CUDA_SUCCESS");
    EXPECT_EQ(killed.Ask("map rw"), "CUDA_SUCCESS");
    EXPECT_EQ(killed.Ask("read"), "5a 5a");
    EXPECT_EQ(killed.Ask("fill a5"), "CUDA_SUCCESS");
  }
  DriverPeer reader;
  EXPECT_EQ(reader.Ask("import " + std::to_string(kChunk), descriptor.get()), "CUDA_SUCCESS");
  EXPECT_EQ(reader.Ask("map ro"), "CUDA_SUCCESS");
  EXPECT_EQ(reader.Ask("read"), "a5 a5");
}

TEST(DriverContract, RefusesToWriteThroughAReadOnlyMapping) {
  const UniqueFd descriptor = LoneDescriptor(kChunk);
  {
    DriverPeer reader;  // its context may not survive
    EXPECT_EQ(reader.Ask("import " + std::to_string(kChunk), descriptor.get()), "CUDA_SUCCESS");
    EXPECT_EQ(reader.Ask("map ro"), "CUDA_SUCCESS");
    EXPECT_EQ(reader.Ask("read"), "00 00");
    EXPECT_NE(reader.Ask("fill ff"), "CUDA_SUCCESS");
  }
  DriverPeer second;
  EXPECT_EQ(second.Ask("import " + std::to_string(kChunk), descriptor.get()), "CUDA_SUCCESS");
  EXPECT_EQ(second.Ask("map rw"), "CUDA_SUCCESS");
  EXPECT_EQ(second.Ask("read"), "00 00");
}

TEST(DriverContract, RefusesAccessThatWasNotGranted) {
  const UniqueFd descriptor = LoneDescriptor(kChunk);
  Handle handle = 0;
  ASSERT_CUDA(CUDA_SUCCESS, Import(&handle, descriptor.get()));
  const ScopedContext context;
  const Mapped mapped(handle, kChunk, cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE);
  char byte = 0;
  EXPECT_NE("CUDA_SUCCESS", Name(Cuda()->cuMemcpyDtoH(&byte, mapped.address, 1)));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemRelease(handle));
}

TEST(DriverContract, ShowsMemoryAsUsedUntilTheLastReferenceIsGone) {
  const Bytes before = Used();
  UniqueFd descriptor = LoneDescriptor(kLarge);
  ASSERT_TRUE(descriptor);
  EXPECT_GE(Used() + kLarge / 4, before + kLarge);
  UniqueFd second = descriptor.Duplicate();
  descriptor.Reset();
  EXPECT_GE(Used() + kLarge / 4, before + kLarge);
  second.Reset();
  EXPECT_TRUE(Eventually([&] { return Used() < before + kLarge / 2; })) << Used();
}

TEST(DriverContract, GivesTheMemoryOfAKilledProcessBack) {
  const Bytes before = Used();
  DriverPeer holder;
  {
    const UniqueFd descriptor = LoneDescriptor(kLarge);
    EXPECT_EQ(holder.Ask("import " + std::to_string(kLarge), descriptor.get()), "CUDA_SUCCESS");
  }
  EXPECT_GE(Used() + kLarge / 4, before + kLarge);
  holder.Kill();
  EXPECT_TRUE(Eventually([&] { return Used() < before + kLarge / 2; })) << Used();
}

TEST(DriverContract, SaysThatMoreThanThereIsIsOutOfMemory) {
  Handle handle = 0;
  const std::optional<Bytes> too_much = RoundUp(Gpus()[0].total + kGiB, 2 * kMiB);
  const cuda::CUresult result = Create(&handle, *too_much);
  EXPECT_CUDA(CUDA_ERROR_OUT_OF_MEMORY, result);
  const Error error = Cuda()->MakeError("cuMemCreate of too much", result);
  EXPECT_EQ(error.code, Code::kResourceExhausted);
  EXPECT_EQ(error.reason, Reason::kDriverMemoryShort);
  EXPECT_EQ(error.message, "cuMemCreate of too much: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
}

TEST(DriverContract, RefusesASizeThatIsNoMultipleOfTheGranularity) {
  Handle handle = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, Create(&handle, 3 * kMiB));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, Create(&handle, 0));
}

TEST(DriverContract, RefusesADescriptorThatIsNoChunk) {
  Handle handle = 0;
  const UniqueFd file(memfd_create("no chunk", MFD_CLOEXEC));
  EXPECT_CUDA(CUDA_ERROR_UNKNOWN, Import(&handle, file.get()));
  EXPECT_CUDA(CUDA_ERROR_UNKNOWN, Import(&handle, 1 << 20));
}

TEST(DriverContract, RefusesAHandleThatWasReleased) {
  Handle handle = 0;
  ASSERT_CUDA(CUDA_SUCCESS, Create(&handle, kChunk));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemRelease(handle));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, Cuda()->cuMemRelease(handle));
}

TEST(DriverContract, TellsTheGpuOfAnImportedChunk) {
  const UniqueFd descriptor = LoneDescriptor(kChunk);
  Handle handle = 0;
  ASSERT_CUDA(CUDA_SUCCESS, Import(&handle, descriptor.get()));
  cuda::CUmemAllocationProp properties = {};
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemGetAllocationPropertiesFromHandle(&properties, handle));
  EXPECT_EQ(properties.type, cuda::CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(properties.location.type, cuda::CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(properties.location.id, 0);
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemRelease(handle));
}

TEST(DriverContract, MapsSeveralChunksIntoOneRange) {
  constexpr int kChunks = 3;
  constexpr Bytes kSize = 4 * kMiB;
  const ScopedContext context;
  cuda::CUdeviceptr address = 0;
  ASSERT_CUDA(CUDA_SUCCESS, Cuda()->cuMemAddressReserve(&address, kChunks * kSize, 0, 0, 0));
  for (int i = 0; i < kChunks; ++i) {
    Handle handle = 0;
    ASSERT_CUDA(CUDA_SUCCESS, Create(&handle, kSize));
    EXPECT_CUDA(CUDA_SUCCESS,
                Cuda()->cuMemMap(address + static_cast<Bytes>(i) * kSize, kSize, 0, handle, 0));
    // The mapping alone keeps it.
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemRelease(handle));
  }
  EXPECT_CUDA(CUDA_SUCCESS,
              Grant(address, kChunks * kSize, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  // Across the borders in one copy.
  std::vector<unsigned int> numbers(kChunks * kSize / sizeof(unsigned int));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<unsigned int>(i);
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemcpyHtoD(address, numbers.data(), kChunks * kSize));
  std::vector<unsigned int> back(numbers.size());
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemcpyDtoH(back.data(), address, kChunks * kSize));
  EXPECT_TRUE(back == numbers);
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemUnmap(address, kChunks * kSize));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemAddressFree(address, kChunks * kSize));
}

TEST(DriverContract, RefusesToMapWhereSomethingIsMapped) {
  Handle handle = 0;
  ASSERT_CUDA(CUDA_SUCCESS, Create(&handle, kChunk));
  {
    const Mapped mapped(handle, kChunk, cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE);
    EXPECT_NE("CUDA_SUCCESS", Name(Cuda()->cuMemMap(mapped.address, kChunk, 0, handle, 0)));
    EXPECT_NE("CUDA_SUCCESS", Name(Cuda()->cuMemAddressFree(mapped.address, kChunk)));
  }
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemRelease(handle));
}

TEST(DriverContract, RefusesToMapWhereNothingIsReserved) {
  Handle handle = 0;
  ASSERT_CUDA(CUDA_SUCCESS, Create(&handle, kChunk));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, Cuda()->cuMemMap(Bytes{1} << 40, kChunk, 0, handle, 0));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemRelease(handle));
}

TEST(DriverContract, SharesPlainMemoryByIpcHandle) {
  DriverPeer maker;
  DriverPeer opener;
  EXPECT_EQ(maker.Ask("alloc " + std::to_string(kChunk)), "CUDA_SUCCESS");
  EXPECT_EQ(maker.Ask("fill 77"), "CUDA_SUCCESS");
  const std::string handle = maker.Ask("handle");
  ASSERT_EQ(handle.size(), 128u) << handle;
  EXPECT_EQ(opener.Ask("open " + handle + " " + std::to_string(kChunk)), "CUDA_SUCCESS");
  EXPECT_EQ(opener.Ask("read"), "77 77");
  EXPECT_EQ(opener.Ask("fill 78"), "CUDA_SUCCESS");
  EXPECT_EQ(maker.Ask("read"), "78 78");
  EXPECT_EQ(opener.Ask("close"), "CUDA_SUCCESS");
}

TEST(DriverContract, KeepsWhatAnIpcHandleOpenedOverItsMakersEnd) {
  DriverPeer maker;
  DriverPeer opener;
  EXPECT_EQ(maker.Ask("alloc " + std::to_string(kChunk)), "CUDA_SUCCESS");
  EXPECT_EQ(maker.Ask("fill 42"), "CUDA_SUCCESS");
  const std::string handle = maker.Ask("handle");
  ASSERT_EQ(opener.Ask("open " + handle + " " + std::to_string(kChunk)), "CUDA_SUCCESS");
  maker.Kill();
  EXPECT_EQ(opener.Ask("read"), "42 42");
}

TEST(DriverContract, SaysWhereAnAllocationBegins) {
  const ScopedContext context;
  cuda::CUdeviceptr address = 0;
  ASSERT_CUDA(CUDA_SUCCESS, Cuda()->cuMemAlloc(&address, 2 * kChunk));
  cuda::CUdeviceptr base = 0;
  std::size_t size = 0;
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemGetAddressRange(&base, &size, address + kChunk + 1));
  EXPECT_EQ(base, address);
  EXPECT_EQ(size, 2 * kChunk);
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemFree(address));
  EXPECT_NE(Cuda()->cuMemGetAddressRange(&base, &size, address), cuda::CUDA_SUCCESS);
}

TEST(DriverContract, HasNoIpcHandleForMappedChunks) {
  const ScopedContext context;
  Handle handle = 0;
  ASSERT_CUDA(CUDA_SUCCESS, Create(&handle, kChunk));
  const Mapped mapped(handle, kChunk, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  cuda::CUipcMemHandle ipc;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, Cuda()->cuIpcGetMemHandle(&ipc, mapped.address));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemRelease(handle));
}

TEST(DriverContract, NeedsAContextForPlainMemory) {
  cuda::CUdeviceptr address = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, Cuda()->cuMemAlloc(&address, kChunk));
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, Cuda()->cuMemGetInfo(&free, &total));
  const ScopedContext context;
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemAlloc(&address, kChunk));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemGetInfo(&free, &total));
  EXPECT_LE(free + kChunk, total);
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemFree(address));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, Cuda()->cuMemFree(address));
}

TEST(DriverContract, RegistersHostMemoryOfAMemfdOnce) {
  const ScopedContext context;
  const UniqueFd file(memfd_create("host memory", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(kChunk)), 0);
  void* host = mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(host, MAP_FAILED);
  ASSERT_CUDA(CUDA_SUCCESS,
              Cuda()->cuMemHostRegister(host, kChunk, cuda::kMemHostRegisterPortable));
  EXPECT_CUDA(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
              Cuda()->cuMemHostRegister(host, kChunk, cuda::kMemHostRegisterPortable));
  cuda::CUdeviceptr device = 0;
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemHostGetDevicePointer(&device, host, 0));

  std::memset(host, 0x42, kChunk);
  cuda::CUdeviceptr address = 0;
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemAlloc(&address, kChunk));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemcpyHtoDAsync(address, host, kChunk, nullptr));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuCtxSynchronize());
  unsigned char byte = 0;
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemcpyDtoH(&byte, address + kChunk - 1, 1));
  EXPECT_EQ(byte, 0x42);
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemFree(address));

  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemHostUnregister(host));
  EXPECT_CUDA(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, Cuda()->cuMemHostUnregister(host));
  munmap(host, kChunk);
}

TEST(DriverContract, RegistersReadOnlyHostMemoryOnlyAsSuch) {
  const ScopedContext context;
  const UniqueFd file(memfd_create("host memory", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(kChunk)), 0);
  void* host = mmap(nullptr, kChunk, PROT_READ, MAP_SHARED, file.get(), 0);
  ASSERT_NE(host, MAP_FAILED);
  EXPECT_NE("CUDA_SUCCESS",
            Name(Cuda()->cuMemHostRegister(host, kChunk, cuda::kMemHostRegisterPortable)));
  munmap(host, kChunk);
}

TEST(DriverContract, MeasuresTimeBetweenEvents) {
  const ScopedContext context;
  cuda::CUstream stream = nullptr;
  cuda::CUevent start = nullptr;
  cuda::CUevent end = nullptr;
  ASSERT_CUDA(CUDA_SUCCESS, Cuda()->cuStreamCreate(&stream, cuda::kStreamNonBlocking));
  ASSERT_CUDA(CUDA_SUCCESS, Cuda()->cuEventCreate(&start, cuda::kEventDefault));
  ASSERT_CUDA(CUDA_SUCCESS, Cuda()->cuEventCreate(&end, cuda::kEventDefault));
  cuda::CUdeviceptr address = 0;
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemAlloc(&address, kChunk));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuEventRecord(start, stream));
  EXPECT_CUDA(CUDA_SUCCESS,
              Cuda()->cuMemcpyDtoDAsync(address, address + kChunk / 2, kChunk / 2, stream));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuEventRecord(end, stream));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuEventSynchronize(end));
  float milliseconds = -1;
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuEventElapsedTime(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 0);
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuMemFree(address));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuEventDestroy(start));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuEventDestroy(end));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuStreamDestroy(stream));
}

TEST(DriverContract, SharesEventsByIpcHandleWithOtherProcesses) {
  const ScopedContext context;
  cuda::CUstream stream = nullptr;
  cuda::CUevent event = nullptr;
  ASSERT_CUDA(CUDA_SUCCESS, Cuda()->cuStreamCreate(&stream, cuda::kStreamNonBlocking));
  ASSERT_CUDA(CUDA_SUCCESS,
              Cuda()->cuEventCreate(&event, cuda::kEventInterprocess | cuda::kEventDisableTiming));
  cuda::CUipcEventHandle handle;
  ASSERT_CUDA(CUDA_SUCCESS, Cuda()->cuIpcGetEventHandle(&handle, event));
  std::string text;
  for (const char byte : handle.reserved) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  DriverPeer peer;
  EXPECT_EQ(peer.Ask("follow " + text), "CUDA_SUCCESS") << "one that was never recorded";
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuEventRecord(event, stream));
  EXPECT_EQ(peer.Ask("follow " + text), "CUDA_SUCCESS");
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuStreamWaitEvent(stream, event, 0));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuStreamSynchronize(stream));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuEventQuery(event));
  cuda::CUevent again = nullptr;
  EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, Cuda()->cuIpcOpenEventHandle(&again, handle))
      << "in the process that made it";
  EXPECT_EQ(peer.Ask("follow " + std::string(128, '0')), "CUDA_ERROR_MAP_FAILED");
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, Cuda()->cuEventCreate(&again, cuda::kEventInterprocess));
  cuda::CUevent own = nullptr;
  ASSERT_CUDA(CUDA_SUCCESS, Cuda()->cuEventCreate(&own, cuda::kEventDisableTiming));
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, Cuda()->cuIpcGetEventHandle(&handle, own));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuEventDestroy(own));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuEventDestroy(event));
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuStreamDestroy(stream));
}

TEST(DriverContract, TellsTheContextOfAStream) {
  const ScopedContext context;
  cuda::CUstream stream = nullptr;
  ASSERT_CUDA(CUDA_SUCCESS, Cuda()->cuStreamCreate(&stream, cuda::kStreamNonBlocking));
  cuda::CUcontext current = nullptr;
  ASSERT_CUDA(CUDA_SUCCESS, Cuda()->cuCtxGetCurrent(&current));
  for (cuda::CUstream one : {stream, cuda::CUstream(nullptr)}) {
    cuda::CUcontext of = nullptr;
    EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuStreamGetCtx(one, &of));
    EXPECT_EQ(of, current);
  }
  EXPECT_CUDA(CUDA_SUCCESS, Cuda()->cuStreamDestroy(stream));
}

TEST(DriverContract, ListsProcessesThatHaveAContext) {
  const ScopedContext context;
  const Result<std::vector<driver::GpuProcess>> processes = Nvml()->Processes(Gpus()[0].uuid);
  ASSERT_TRUE(processes.ok()) << processes.error().message;
  // A container may number its processes otherwise than NVML does.
  EXPECT_GE(Nvml()->UtilizationPercent(Gpus()[0].uuid).value(), 0);
  EXPECT_LE(Nvml()->UtilizationPercent(Gpus()[0].uuid).value(), 100);
}

TEST(DriverContract, PutsErrorsInWords) {
  EXPECT_EQ(Cuda()->MakeError("cuInit", cuda::CUDA_ERROR_NO_DEVICE).message,
            "cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)");
  EXPECT_EQ(Cuda()->MakeError("x", static_cast<cuda::CUresult>(12345)).message,
            "x: CUDA error 12345");
  EXPECT_EQ(Cuda()->MakeError("x", cuda::CUDA_ERROR_DEVICE_UNAVAILABLE).reason,
            Reason::kGpuUnavailable);
  EXPECT_EQ(Cuda()->MakeError("x", cuda::CUDA_ERROR_OPERATING_SYSTEM).reason,
            Reason::kDescriptorLimit);
  EXPECT_EQ(Cuda()->MakeError("x", cuda::CUDA_ERROR_NOT_SUPPORTED).reason, Reason::kUnsupported);
  EXPECT_EQ(Cuda()->MakeError("x", cuda::CUDA_ERROR_INVALID_VALUE).reason, Reason::kDriver);
}

// The numbers and names of cuda_abi.h are the driver's own; a driver may know more of them.
TEST(DriverContract, NamesEveryResultAsTheAbiDoes) {
#define GPULEASE_CUDA_RESULT(name, value, text) EXPECT_EQ(#name, Name(cuda::name));
  GPULEASE_CUDA_RESULTS(GPULEASE_CUDA_RESULT)
#undef GPULEASE_CUDA_RESULT
}

}  // namespace
}  // namespace gpulease

int main(int argc, char** argv) {
  int status = 0;
  if (gpulease::testing::RanAsPeer(argc, argv, &status)) return status;
  ::testing::InitGoogleTest(&argc, argv);

  const char* chosen = std::getenv("GPULEASE_CONTRACT_DRIVER");
  if (chosen != nullptr && std::strcmp(chosen, "real") == 0) {
    const auto cuda = gpulease::driver::CudaDriver::Load({});
    if (!cuda.ok()) {
      std::printf("skipped: no GPU to test on: %s\n", cuda.error().message.c_str());
      return 77;
    }
    return RUN_ALL_TESTS();
  }
  char directory[] = "/tmp/gpulease-contract-XXXXXX";
  if (mkdtemp(directory) == nullptr) return 1;
  const auto node = gpulease::simulated::Node::Create(
      directory, gpulease::simulated::ParseSpec("2x4GiB").value());
  if (!node.ok()) {
    std::printf("%s\n", node.error().message.c_str());
    return 1;
  }
  gpulease::testing::UseSimulatedNode(directory);
  status = RUN_ALL_TESTS();
  std::filesystem::remove_all(directory);
  return status;
}
