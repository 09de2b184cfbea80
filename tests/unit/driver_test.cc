// SPDX-License-Identifier: Apache-2.0
//
// What the simulated driver has beyond the contract: faults, capacity that processes share, memory
// that lives as long as anything holds it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
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
using driver::DriverChoice;
using driver::NvmlDriver;
using simulated::Fault;
using simulated::FaultAction;
using simulated::Node;
using simulated::ParseSpec;
using ::testing::AllOf;
using testing::DriverPeer;
using testing::Eventually;
using ::testing::HasSubstr;

// A node directory that goes with the test, and the driver that serves it.
class SimulatedDriverTest : public ::testing::Test {
 protected:
  void Serve(const char* spec) {
    char name[] = "/tmp/gpulease-driver-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    node_.emplace(Node::Create(directory_, ParseSpec(spec).value()).value());
    testing::UseSimulatedNode(directory_);
    cuda_ = CudaDriver::Load({directory_}).value();
    nvml_ = NvmlDriver::Load({directory_}).value();
  }

  ~SimulatedDriverTest() override {
    if (node_.has_value()) node_->ClearFaults();
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  std::string Name(cuda::CUresult result) {
    const char* name = nullptr;
    cuda_->cuGetErrorName(result, &name);
    return name != nullptr ? name : "?";
  }

  std::string Create(Bytes size, UniqueFd* descriptor = nullptr, int ordinal = 0) {
    const cuda::CUmemAllocationProp properties = ChunkProperties(ordinal);
    cuda::CUmemGenericAllocationHandle handle = 0;
    cuda::CUresult result = cuda_->cuMemCreate(&handle, size, &properties, 0);
    if (result != cuda::CUDA_SUCCESS) return Name(result);
    int exported = -1;
    result = cuda_->cuMemExportToShareableHandle(&exported, handle,
                                                 cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    cuda_->cuMemRelease(handle);
    if (result != cuda::CUDA_SUCCESS) return Name(result);
    UniqueFd owned(exported);
    if (descriptor != nullptr) *descriptor = std::move(owned);
    return "CUDA_SUCCESS";
  }

  std::string directory_;
  std::optional<Node> node_;
  std::shared_ptr<const CudaDriver> cuda_;
  std::shared_ptr<const NvmlDriver> nvml_;
};

TEST_F(SimulatedDriverTest, DescribesTheNodeAsAsked) {
  Serve("1x1GiB,1x2GiB");
  const auto gpus = driver::DescribeGpus(*cuda_, nvml_.get()).value();
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].total, kGiB);
  EXPECT_EQ(gpus[1].total, 2 * kGiB);
  EXPECT_EQ(gpus[0].uuid, node_->uuid_text(0));
  EXPECT_NE(gpus[0].uuid, gpus[1].uuid);
  EXPECT_EQ(gpus[0].peer_uuids, std::vector<std::string>{gpus[1].uuid});
  EXPECT_EQ(gpus[0].unsupported, "");
  EXPECT_TRUE(cuda_->simulated());
  const driver::GpuMemory memory = nvml_->Memory(gpus[1].uuid).value();
  EXPECT_EQ(memory.total - memory.reserved, 2 * kGiB);
  EXPECT_EQ(driver::DescribeGpus(*cuda_, nullptr).value()[1].total, 2 * kGiB);
}

TEST_F(SimulatedDriverTest, StaysTheSameNodeWhenItIsMadeAgain) {
  Serve("1x1GiB");
  UniqueFd chunk;
  ASSERT_EQ(Create(64 * kMiB, &chunk), "CUDA_SUCCESS");
  const Node again = Node::Create(directory_, ParseSpec("1x1GiB").value()).value();
  EXPECT_EQ(again.id(), node_->id());
  EXPECT_EQ(again.Used(0), 64 * kMiB);
  const Node other = Node::Create(directory_, ParseSpec("1x2GiB").value()).value();
  EXPECT_NE(other.id(), node_->id());
  EXPECT_EQ(other.Used(0), 0u);
}

// Seen with the service, whose umask is 0077: other users' programs could not open the node.
TEST_F(SimulatedDriverTest, IsOpenToEveryUserWhateverTheUmask) {
  Serve("1x1GiB");
  const std::string inside = directory_ + "/inside";
  const mode_t umask_before = umask(0077);
  const auto node = Node::Create(inside, ParseSpec("1x1GiB").value());
  umask(umask_before);
  ASSERT_TRUE(node.ok()) << node.error().message;
  struct stat status;
  ASSERT_EQ(stat(inside.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0755u);
  ASSERT_EQ(stat((inside + "/node").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0666u);
}

TEST_F(SimulatedDriverTest, ShowsOnlyVisibleDevices) {
  char name[] = "/tmp/gpulease-driver-XXXXXX";
  ASSERT_NE(mkdtemp(name), nullptr);
  const Node node = Node::Create(name, ParseSpec("3x1GiB").value()).value();
  const std::string visible = "2," + node.uuid_text(0).substr(0, 14) + ",nonsense,1";
  setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), 1);
  const auto cuda = CudaDriver::Load({name}).value();
  unsetenv("CUDA_VISIBLE_DEVICES");
  const auto gpus = driver::DescribeGpus(*cuda, nullptr).value();
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].uuid, node.uuid_text(2));
  EXPECT_EQ(gpus[1].uuid, node.uuid_text(0));
  std::filesystem::remove_all(name);
}

TEST_F(SimulatedDriverTest, CostsNothingUntilItIsTouched) {
  Serve("1x1024GiB");
  UniqueFd chunk;
  ASSERT_EQ(Create(512 * kGiB, &chunk), "CUDA_SUCCESS");
  struct stat status;
  ASSERT_EQ(fstat(chunk.get(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
  EXPECT_EQ(node_->Used(0), 512 * kGiB);
}

TEST_F(SimulatedDriverTest, SharesCapacityBetweenProcesses) {
  Serve("2x1GiB");
  DriverPeer peer;
  ASSERT_EQ(peer.Ask("create " + std::to_string(768 * kMiB)), "CUDA_SUCCESS");
  UniqueFd chunk;
  EXPECT_EQ(Create(512 * kMiB, &chunk), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(Create(256 * kMiB, &chunk), "CUDA_SUCCESS");
  EXPECT_EQ(Create(2 * kMiB), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(Create(2 * kMiB, nullptr, 1), "CUDA_SUCCESS") << "the other GPU is empty";
  EXPECT_EQ(peer.Ask("release"), "CUDA_SUCCESS");
  EXPECT_EQ(Create(768 * kMiB), "CUDA_SUCCESS");
}

TEST_F(SimulatedDriverTest, NeverGivesMoreThanThereIsToManyAtOnce) {
  Serve("1x64MiB");
  std::vector<std::thread> threads;
  std::atomic<int> made{0};
  std::vector<std::vector<UniqueFd>> kept(4);
  for (std::size_t t = 0; t < kept.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        UniqueFd chunk;
        if (Create(2 * kMiB, &chunk) != "CUDA_SUCCESS") continue;
        if (i % 2 == 0) continue;  // given back at once
        kept[t].push_back(std::move(chunk));
        made.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(made.load(), 32);
  EXPECT_EQ(node_->Used(0), static_cast<Bytes>(made.load()) * 2 * kMiB);
  while (made.load() < 32) {
    UniqueFd chunk;
    ASSERT_EQ(Create(2 * kMiB, &chunk), "CUDA_SUCCESS");
    kept[0].push_back(std::move(chunk));
    made.fetch_add(1);
  }
  EXPECT_EQ(Create(2 * kMiB), "CUDA_ERROR_OUT_OF_MEMORY");
}

TEST_F(SimulatedDriverTest, TakesTheMemoryOfAKilledProcessBack) {
  Serve("1x1GiB");
  DriverPeer peer;
  ASSERT_EQ(peer.Ask("create " + std::to_string(kGiB)), "CUDA_SUCCESS");
  ASSERT_EQ(peer.Ask("map rw"), "CUDA_SUCCESS");
  EXPECT_EQ(node_->Used(0), kGiB);
  peer.Kill();
  EXPECT_EQ(node_->Used(0), 0u);
  EXPECT_EQ(Create(kGiB), "CUDA_SUCCESS");
}

TEST_F(SimulatedDriverTest, LeavesTheMemoryOfAKilledProcessToItsForkedChild) {
  Serve("1x1GiB");
  pid_t child = 0;
  {
    DriverPeer peer;
    ASSERT_EQ(peer.Ask("create " + std::to_string(kGiB)), "CUDA_SUCCESS");
    ASSERT_EQ(peer.Ask("map rw"), "CUDA_SUCCESS");
    child = std::stoi(peer.Ask("fork"));
    ASSERT_GT(child, 0);
    peer.Kill();
    EXPECT_EQ(node_->Used(0), kGiB);
  }
  // The child's end of the socket is closed with the peer: it ends.
  EXPECT_TRUE(Eventually([&] { return node_->Used(0) == 0; }));
}

TEST_F(SimulatedDriverTest, RefusesEverythingInAForkedChild) {
  Serve("1x1GiB");
  UniqueFd chunk;
  ASSERT_EQ(Create(64 * kMiB, &chunk), "CUDA_SUCCESS");
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    std::size_t granularity = 0;
    const cuda::CUmemAllocationProp properties = ChunkProperties(0);
    const bool refused = cuda_->cuInit(0) == cuda::CUDA_ERROR_NOT_INITIALIZED &&
                         cuda_->cuDeviceGetCount(&count) == cuda::CUDA_ERROR_NOT_INITIALIZED &&
                         cuda_->cuMemGetAllocationGranularity(
                             &granularity, &properties, cuda::CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
                             cuda::CUDA_ERROR_NOT_INITIALIZED &&
                         !nvml_->Memory(node_->uuid_text(0)).ok();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Create(64 * kMiB), "CUDA_SUCCESS") << "the parent goes on";
}

TEST_F(SimulatedDriverTest, SaysSoAtTheDescriptorLimit) {
  Serve("1x1GiB");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd highest(fcntl(0, F_DUPFD_CLOEXEC, 0));
  const rlimit tight = {static_cast<rlim_t>(highest.get()) + 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const std::string result = Create(64 * kMiB);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(result, "CUDA_ERROR_OPERATING_SYSTEM");
  EXPECT_EQ(node_->Used(0), 0u);
  EXPECT_EQ(cuda_->MakeError("x", cuda::CUDA_ERROR_OPERATING_SYSTEM).reason,
            Reason::kDescriptorLimit);
}

TEST_F(SimulatedDriverTest, CountsWhatOtherProgramsUse) {
  Serve("1x1GiB");
  node_->SetOutsideBytes(0, 768 * kMiB);
  node_->SetUtilization(0, 37);
  const std::string uuid = node_->uuid_text(0);
  EXPECT_EQ(nvml_->Memory(uuid)->used, 768 * kMiB);
  EXPECT_EQ(nvml_->UtilizationPercent(uuid).value(), 37);
  EXPECT_EQ(Create(512 * kMiB), "CUDA_ERROR_OUT_OF_MEMORY");
  node_->SetOutsideBytes(0, 0);
  EXPECT_EQ(Create(512 * kMiB), "CUDA_SUCCESS");
}

TEST_F(SimulatedDriverTest, ListsProcessesWithAContextAndWhatTheyUse) {
  Serve("1x1GiB");
  const std::string uuid = node_->uuid_text(0);
  EXPECT_TRUE(nvml_->Processes(uuid)->empty());
  DriverPeer peer;
  ASSERT_EQ(peer.Ask("create " + std::to_string(64 * kMiB)), "CUDA_SUCCESS");
  EXPECT_TRUE(nvml_->Processes(uuid)->empty()) << "the driver alone is not listed";
  ASSERT_EQ(peer.Ask("alloc " + std::to_string(32 * kMiB)), "CUDA_SUCCESS");
  const std::vector<driver::GpuProcess> processes = nvml_->Processes(uuid).value();
  ASSERT_EQ(processes.size(), 1u);
  EXPECT_EQ(processes[0].pid, peer.pid());
  EXPECT_EQ(processes[0].used, 32 * kMiB);
  peer.Kill();
  EXPECT_TRUE(nvml_->Processes(uuid)->empty());
}

TEST_F(SimulatedDriverTest, FailsTheNthCall) {
  Serve("2x1GiB");
  ASSERT_TRUE(node_
                  ->InjectFault({.function = "cuMemCreate",
                                 .nth = 2,
                                 .times = 2,
                                 .code = cuda::CUDA_ERROR_ECC_UNCORRECTABLE})
                  .ok());
  EXPECT_EQ(Create(2 * kMiB), "CUDA_SUCCESS");
  EXPECT_EQ(Create(2 * kMiB), "CUDA_ERROR_ECC_UNCORRECTABLE");
  EXPECT_EQ(node_->FaultsMet(), 1);
  EXPECT_EQ(Create(2 * kMiB), "CUDA_ERROR_ECC_UNCORRECTABLE");
  EXPECT_EQ(Create(2 * kMiB), "CUDA_SUCCESS");
  EXPECT_EQ(node_->FaultsMet(), 2);
}

TEST_F(SimulatedDriverTest, FailsCallsOfOneGpuOrOneProcess) {
  Serve("2x1GiB");
  DriverPeer peer;
  const std::string create = "create " + std::to_string(2 * kMiB);
  ASSERT_EQ(peer.Ask("context"), "none");  // it has loaded the driver
  Fault fault = {.function = "cuMemCreate", .times = 0, .code = cuda::CUDA_ERROR_UNKNOWN};
  fault.gpu = 1;
  ASSERT_TRUE(node_->InjectFault(fault).ok());
  EXPECT_EQ(Create(2 * kMiB, nullptr, 0), "CUDA_SUCCESS");
  EXPECT_EQ(Create(2 * kMiB, nullptr, 1), "CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(peer.Ask(create + " 1"), "CUDA_ERROR_UNKNOWN");
  node_->ClearFaults();
  fault.gpu = -1;
  fault.pid = peer.pid();
  ASSERT_TRUE(node_->InjectFault(fault).ok());
  EXPECT_EQ(Create(2 * kMiB), "CUDA_SUCCESS");
  EXPECT_EQ(peer.Ask(create), "CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(peer.Ask(create), "CUDA_ERROR_UNKNOWN") << "until it is cleared";
  node_->ClearFaults();
  EXPECT_EQ(peer.Ask(create), "CUDA_SUCCESS");
}

TEST_F(SimulatedDriverTest, FailsNvmlToo) {
  Serve("1x1GiB");
  const std::string uuid = node_->uuid_text(0);
  ASSERT_TRUE(node_
                  ->InjectFault({.function = "nvmlDeviceGetMemoryInfo_v2",
                                 .code = nvml::NVML_ERROR_NOT_SUPPORTED})
                  .ok());
  const Result<driver::GpuMemory> memory = nvml_->Memory(uuid);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.error().reason, Reason::kUnsupported);
  EXPECT_THAT(memory.error().message, AllOf(HasSubstr(uuid), HasSubstr("Not Supported")));
  // An NVML without the new query is asked the old one.
  ASSERT_TRUE(node_
                  ->InjectFault({.function = "nvmlDeviceGetMemoryInfo_v2",
                                 .code = nvml::NVML_ERROR_ARGUMENT_VERSION_MISMATCH})
                  .ok());
  EXPECT_EQ(nvml_->Memory(uuid)->total, kGiB + simulated::kReserved);
}

TEST_F(SimulatedDriverTest, BlocksACallUntilFaultsAreCleared) {
  Serve("1x1GiB");
  DriverPeer peer;
  ASSERT_TRUE(node_->InjectFault({.function = "cuMemCreate", .action = FaultAction::kBlock}).ok());
  peer.Send("create " + std::to_string(2 * kMiB));
  ASSERT_TRUE(Eventually([&] { return node_->FaultsMet() == 1; }));
  EXPECT_EQ(node_->Used(0), 0u);
  EXPECT_EQ(Create(4 * kMiB), "CUDA_SUCCESS") << "only the first call meets it";
  node_->ClearFaults();
  EXPECT_EQ(peer.Receive(), "CUDA_SUCCESS");
  EXPECT_EQ(node_->Used(0), 2 * kMiB);
}

TEST_F(SimulatedDriverTest, TellsXidErrorsToWhoListens) {
  Serve("2x1GiB");
  using std::chrono::milliseconds;
  node_->RaiseXid(1, 13);  // before anybody listens
  auto events = driver::XidEvents::Open(nvml_, {node_->uuid_text(0), node_->uuid_text(1)}).value();
  EXPECT_EQ(events.Wait(milliseconds(1)).value(), std::nullopt);
  node_->RaiseXid(1, 79);
  const std::optional<driver::Xid> heard = events.Wait(milliseconds(0)).value();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->uuid, node_->uuid_text(1));
  EXPECT_EQ(heard->number, 79u);
  EXPECT_EQ(events.Wait(milliseconds(0)).value(), std::nullopt);
  std::thread later([&] { node_->RaiseXid(0, 31); });
  const std::optional<driver::Xid> waited = events.Wait(std::chrono::seconds(20)).value();
  later.join();
  ASSERT_TRUE(waited);
  EXPECT_EQ(waited->number, 31u);
  EXPECT_FALSE(driver::XidEvents::Open(nvml_, {"GPU-none"}).ok());
}

TEST_F(SimulatedDriverTest, LosesAGpuAndFindsItAgain) {
  Serve("2x1GiB");
  const std::string uuid = node_->uuid_text(0);
  UniqueFd chunk;
  ASSERT_EQ(Create(64 * kMiB, &chunk), "CUDA_SUCCESS");
  ASSERT_TRUE(node_->InjectFault({.gpu = 0, .action = FaultAction::kGpuLost}).ok());
  EXPECT_EQ(Create(2 * kMiB), "CUDA_ERROR_DEVICE_UNAVAILABLE");
  EXPECT_EQ(Create(2 * kMiB, nullptr, 1), "CUDA_SUCCESS");
  EXPECT_EQ(nvml_->Memory(uuid).error().reason, Reason::kGpuUnavailable);
  const auto gpus = driver::DescribeGpus(*cuda_, nvml_.get()).value();
  ASSERT_EQ(gpus.size(), 2u) << "it is still listed, and says why it cannot be used";
  EXPECT_EQ(gpus[0].uuid, uuid);
  EXPECT_THAT(gpus[0].unsupported, HasSubstr("CUDA_ERROR_DEVICE_UNAVAILABLE"));
  EXPECT_EQ(gpus[1].unsupported, "");
  node_->ClearFaults();
  EXPECT_EQ(Create(2 * kMiB), "CUDA_SUCCESS");
  EXPECT_EQ(nvml_->Memory(uuid)->used, 64 * kMiB);
  // From the nth call of a function on.
  ASSERT_TRUE(node_
                  ->InjectFault(
                      {.function = "cuMemExportToShareableHandle", .action = FaultAction::kGpuLost})
                  .ok());
  EXPECT_EQ(Create(2 * kMiB), "CUDA_ERROR_DEVICE_UNAVAILABLE");
  EXPECT_EQ(Create(2 * kMiB), "CUDA_ERROR_DEVICE_UNAVAILABLE");
  EXPECT_EQ(node_->Used(0), 64 * kMiB) << "what was made is let go all the same";
}

TEST_F(SimulatedDriverTest, RefusesFaultsThatCanNeverHappen) {
  Serve("1x1GiB");
  EXPECT_EQ(node_->InjectFault({.function = "cuMemCreat"}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(node_->InjectFault({.function = "cuInit", .gpu = 1}).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(node_->InjectFault({.function = "cuInit", .nth = 0}).error().code,
            Code::kInvalidArgument);
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(node_->InjectFault({.function = "cuInit"}).ok());
  EXPECT_EQ(node_->InjectFault({.function = "cuInit"}).error().code, Code::kResourceExhausted);
}

TEST_F(SimulatedDriverTest, FailsToLoadWhenInitialisationFails) {
  Serve("1x1GiB");
  ASSERT_TRUE(node_->InjectFault({.function = "cuInit", .code = cuda::CUDA_ERROR_NO_DEVICE}).ok());
  const auto cuda = CudaDriver::Load({directory_});
  ASSERT_FALSE(cuda.ok());
  EXPECT_EQ(cuda.error().code, Code::kUnavailable);
  EXPECT_EQ(cuda.error().reason, Reason::kDriver);
  EXPECT_THAT(cuda.error().message, HasSubstr("CUDA_ERROR_NO_DEVICE"));
}

TEST_F(SimulatedDriverTest, RefusesChunksOfAnotherNode) {
  Serve("1x1GiB");
  UniqueFd chunk;
  ASSERT_EQ(Create(2 * kMiB, &chunk), "CUDA_SUCCESS");
  const std::string first = directory_;
  Serve("1x1GiB");
  cuda::CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(Name(cuda_->cuMemImportFromShareableHandle(
                &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(chunk.get())),
                cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)),
            "CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(node_->Used(0), 0u);
  std::filesystem::remove_all(first);
}

TEST_F(SimulatedDriverTest, EndsAProcessThatStoresThroughAReadOnlyMapping) {
  Serve("1x1GiB");
  UniqueFd chunk;
  ASSERT_EQ(Create(2 * kMiB, &chunk), "CUDA_SUCCESS");
  cuda::CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(Name(cuda_->cuMemImportFromShareableHandle(
                &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(chunk.get())),
                cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)),
            "CUDA_SUCCESS");
  cuda::CUdeviceptr address = 0;
  ASSERT_EQ(Name(cuda_->cuMemAddressReserve(&address, 2 * kMiB, 0, 0, 0)), "CUDA_SUCCESS");
  ASSERT_EQ(Name(cuda_->cuMemMap(address, 2 * kMiB, 0, handle, 0)), "CUDA_SUCCESS");
  cuda::CUmemAccessDesc access = {};
  access.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, 0};
  access.flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_READ;
  ASSERT_EQ(Name(cuda_->cuMemSetAccess(address, 2 * kMiB, &access, 1)), "CUDA_SUCCESS");
  EXPECT_EQ(*reinterpret_cast<const volatile char*>(address), 0);
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(address) = 1, "");
  EXPECT_EQ(Name(cuda_->cuMemUnmap(address, 2 * kMiB)), "CUDA_SUCCESS");
  EXPECT_EQ(Name(cuda_->cuMemAddressFree(address, 2 * kMiB)), "CUDA_SUCCESS");
  EXPECT_EQ(Name(cuda_->cuMemRelease(handle)), "CUDA_SUCCESS");
}

TEST_F(SimulatedDriverTest, CountsManyChunks) {
  Serve("1x64GiB");
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  constexpr int kChunks = 5000;
  if (limit.rlim_max < kChunks + 100) GTEST_SKIP() << "the descriptor limit is " << limit.rlim_max;
  std::vector<UniqueFd> chunks(kChunks);
  const auto start = std::chrono::steady_clock::now();
  for (UniqueFd& chunk : chunks) ASSERT_EQ(Create(2 * kMiB, &chunk), "CUDA_SUCCESS");
  const auto made = std::chrono::steady_clock::now();
  EXPECT_EQ(nvml_->Memory(node_->uuid_text(0))->used, kChunks * 2 * kMiB);
  const auto counted = std::chrono::steady_clock::now();
  using Milliseconds = std::chrono::duration<double, std::milli>;
  std::printf("%d chunks: made in %.1f ms, counted in %.1f ms\n", kChunks,
              Milliseconds(made - start).count(), Milliseconds(counted - made).count());
}

}  // namespace
}  // namespace gpulease

int main(int argc, char** argv) {
  int status = 0;
  if (gpulease::testing::RanAsPeer(argc, argv, &status)) return status;
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
