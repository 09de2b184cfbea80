// SPDX-License-Identifier: Apache-2.0
//
// Device memory: the SDK's mappings over the simulated driver, with chunks that the fake daemon
// makes as the real one does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "client/sdk/include/gpulease/gpulease.h"
#include "driver/cuda_driver.h"
#include "driver/gpu_probe.h"
#include "driver/simulated/simulated.h"
#include "tests/fakes/fake_daemon.h"
#include "tests/unit/scratch_dir.h"

namespace gpulease {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kChunk = 2 * kMiB;

template <typename Call>
Exception Thrown(Call call) {
  try {
    call();
  } catch (const Exception& exception) {
    return exception;
  }
  return Exception(static_cast<ErrorCode>(0), ErrorReason::kUnspecified, "nothing was thrown");
}

class SdkDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    auto spec = simulated::ParseSpec("2x1GiB");
    ASSERT_TRUE(spec.ok());
    auto node = simulated::Node::Create(gpus_.path(), *spec);
    ASSERT_TRUE(node.ok()) << node.error().message;
    node_.emplace(*node);
    auto cuda = driver::CudaDriver::Load({.simulated_directory = gpus_.path()});
    ASSERT_TRUE(cuda.ok()) << cuda.error().message;
    cuda_ = *cuda;
    daemon_.Change([&](auto& behaviour) {
      behaviour.simulated_directory = gpus_.path();
      behaviour.chunk_bytes = kChunk;
      behaviour.gpu_uuid = node_->uuid_text(0);
      behaviour.make_chunk = [this](std::uint64_t size) { return MakeChunk(size); };
    });
  }

  void TearDown() override {
    if (node_) node_->ClearFaults();
  }

  // As the daemon does it: create, export, release.
  UniqueFd MakeChunk(std::uint64_t size) {
    const cuda::CUmemAllocationProp properties = driver::ChunkProperties(0);
    cuda::CUmemGenericAllocationHandle handle = 0;
    int fd = -1;
    if (cuda_->cuMemCreate(&handle, size, &properties, 0) != cuda::CUDA_SUCCESS) return {};
    (void)cuda_->cuMemExportToShareableHandle(&fd, handle,
                                              cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    cuda_->cuMemRelease(handle);
    return UniqueFd(fd);
  }

  ClientOptions Options() { return {.runtime_dir = scratch_.path()}; }
  static AllocateOptions Device(std::uint64_t chunks, std::string name = "") {
    return {.size_bytes = chunks * kChunk, .name = std::move(name)};
  }

  // Makes this GPU's primary context current, for copies. Takes it back when destroyed.
  struct Context {
    explicit Context(const driver::CudaDriver& driver) : cuda(driver) {
      cuda.cuDevicePrimaryCtxRetain(&context, 0);
      cuda.cuCtxPushCurrent(context);
    }
    ~Context() {
      cuda.cuCtxPopCurrent(&context);
      cuda.cuDevicePrimaryCtxRelease(0);
    }
    const driver::CudaDriver& cuda;
    cuda::CUcontext context = nullptr;
  };

  ScratchDir scratch_;
  ScratchDir gpus_;
  std::optional<simulated::Node> node_;
  std::shared_ptr<const driver::CudaDriver> cuda_;
  fakes::FakeDaemon daemon_{scratch_.path()};
};

TEST_F(SdkDeviceTest, MapsChunksIntoOneRangeThatAnotherClientReads) {
  Client owner(Options());
  Lease lease = owner.Allocate(Device(4, "weights"));
  Mapping mapped = lease.Map();
  ASSERT_NE(mapped.device_pointer(), 0u);
  EXPECT_EQ(mapped.host_pointer(), nullptr);
  EXPECT_EQ(mapped.device_ordinal(), 0);
  EXPECT_EQ(mapped.size_bytes(), 4 * kChunk);
  Context context(*cuda_);
  ASSERT_EQ(cuda_->cuMemsetD8(mapped.device_pointer(), 0x42, mapped.size_bytes()),
            cuda::CUDA_SUCCESS);
  Client other(Options());
  Mapping reading = other.Open("weights", Access::kReadOnly).Map();
  std::vector<char> bytes(4 * kChunk);
  ASSERT_EQ(cuda_->cuMemcpyDtoH(bytes.data(), reading.device_pointer(), bytes.size()),
            cuda::CUDA_SUCCESS);
  EXPECT_EQ(bytes, std::vector<char>(4 * kChunk, 0x42));
}

TEST_F(SdkDeviceTest, FreesTheMemoryWithTheLastMapping) {
  Client client(Options());
  {
    Mapping mapped = client.Allocate(Device(3)).Map();
    EXPECT_EQ(node_->Used(0), 3 * kChunk);
  }
  EXPECT_EQ(daemon_.lease_count(), 0u);
  EXPECT_EQ(node_->Used(0), 0u);
}

TEST_F(SdkDeviceTest, NamesTheStepThatFailsAndUndoesTheOthers) {
  Client client(Options());
  Lease lease = client.Allocate(Device(3));
  (void)lease.Map();
  struct Step {
    const char* function;
    std::int64_t nth;
    const char* where;
  };
  for (const Step& step :
       {Step{"cuMemAddressReserve", 1, "cuMemAddressReserve of 6.0 MiB"},
        Step{"cuMemImportFromShareableHandle", 2, "chunk 1"}, Step{"cuMemMap", 3, "chunk 2"},
        Step{"cuMemSetAccess", 1, "for writing"}}) {
    SCOPED_TRACE(step.function);
    simulated::Fault fault;
    fault.function = step.function;
    fault.nth = step.nth;
    fault.code = cuda::CUDA_ERROR_UNKNOWN;
    ASSERT_TRUE(node_->InjectFault(fault).ok());
    const Exception error = Thrown([&] { (void)lease.Map(); });
    EXPECT_EQ(node_->FaultsMet(), 1);
    node_->ClearFaults();
    EXPECT_EQ(error.reason(), ErrorReason::kDriver);
    EXPECT_THAT(error.what(), HasSubstr(step.function));
    EXPECT_THAT(error.what(), HasSubstr(step.where));
    EXPECT_NE(lease.Map().device_pointer(), 0u) << "the next attempt works";
  }
  lease.Release();
  EXPECT_EQ(node_->Used(0), 0u) << "no failed attempt has kept a chunk";
}

TEST_F(SdkDeviceTest, LeavesTheContextOfTheThreadAsItIs) {
  Client client(Options());
  Lease lease = client.Allocate(Device(1));
  std::thread bare([&] {
    Mapping mapped = lease.Map();
    cuda::CUcontext current = nullptr;
    EXPECT_EQ(cuda_->cuCtxGetCurrent(&current), cuda::CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
  });
  bare.join();
  Context context(*cuda_);
  Mapping mapped = lease.Map();
  cuda::CUcontext current = nullptr;
  EXPECT_EQ(cuda_->cuCtxGetCurrent(&current), cuda::CUDA_SUCCESS);
  EXPECT_EQ(current, context.context);
}

TEST_F(SdkDeviceTest, SaysThatTheGpuIsNotVisibleHere) {
  daemon_.Change(
      [](auto& behaviour) { behaviour.gpu_uuid = "GPU-00000000-0000-0000-0000-000000000000"; });
  Client client(Options());
  Lease lease = client.Allocate(Device(1));
  const Exception error = Thrown([&] { (void)lease.Map(); });
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(error.reason(), ErrorReason::kNoSuchGpu);
  EXPECT_THAT(error.what(), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST_F(SdkDeviceTest, GivesPeersAccessToTheSameAddress) {
  Client client(Options());
  Lease lease = client.Allocate(Device(1));
  EXPECT_NE(lease.Map({.peer_gpu_uuids = {node_->uuid_text(1)}}).device_pointer(), 0u);
}

TEST_F(SdkDeviceTest, RegistersHostMemoryWhereTheThreadUsesCudaOrItIsAsked) {
  daemon_.Change([](auto& behaviour) { behaviour.make_chunk = nullptr; });
  Client client(Options());
  AllocateOptions options = Device(1);
  options.kind = MemoryKind::kHost;
  Lease lease = client.Allocate(options);
  EXPECT_EQ(lease.Map().device_pointer(), 0u) << "nothing here uses CUDA";
  EXPECT_NE(lease.Map({.register_with_cuda = true}).device_pointer(), 0u);
  {
    Context context(*cuda_);
    EXPECT_NE(lease.Map().device_pointer(), 0u);
  }
  simulated::Fault fault;
  fault.function = "cuMemHostRegister";
  fault.code = cuda::CUDA_ERROR_OUT_OF_MEMORY;
  ASSERT_TRUE(node_->InjectFault(fault).ok());
  const Exception error = Thrown([&] { (void)lease.Map({.register_with_cuda = true}); });
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(error.what(), HasSubstr("ulimit -l"));
  EXPECT_NE(lease.Map({.register_with_cuda = true}).device_pointer(), 0u);
}

TEST_F(SdkDeviceTest, LoadsNoCudaWhenTold) {
  ClientOptions options = Options();
  options.use_cuda = false;
  Client client(options);
  Lease lease = client.Allocate(Device(1));
  EXPECT_EQ(Thrown([&] { (void)lease.Map(); }).reason(), ErrorReason::kUnsupported);
}

}  // namespace
}  // namespace gpulease
