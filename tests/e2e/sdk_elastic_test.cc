// SPDX-License-Identifier: Apache-2.0
//
// Leases that grow and shrink under the pointers that the SDK gave, in their owner and in those who
// have them open, and over a restart of the daemon.
#include <gmock/gmock.h>
#include <gpulease/gpulease.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "driver/cuda_driver.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/keeper_process.h"

namespace gpulease::e2e {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// One daemon for all: a process sees one simulated node in its life.
class SdkElasticTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryDirectory;
    keeper_ = new KeeperProcess(folder_->path() + "/run");
    daemon_ = new DaemonProcess({.simulate = "1x1GiB",
                                 .config = "largest_chunk: \"4MiB\"",
                                 .runtime_dir = folder_->path() + "/run"});
  }
  static void TearDownTestSuite() {
    delete daemon_;
    delete keeper_;
    delete folder_;
  }
  ~SdkElasticTest() override {
    EXPECT_TRUE(Eventually([] { return IsAllFree(Node()); })) << Node().ShortDebugString();
  }
  static v1::GetNodeResponse Node() { return RawClient(daemon_->runtime_dir()).Node(); }
  static Bytes NotFree() {
    const v1::GetNodeResponse node = Node();
    return node.gpus(0).memory().total_bytes() - node.gpus(0).memory().free_bytes();
  }
  static ::gpulease::ClientOptions Here() { return {.runtime_dir = daemon_->runtime_dir()}; }
  static AllocateOptions Elastic(Bytes size = 2 * kMiB, std::string name = "") {
    return {.size_bytes = size, .name = std::move(name), .reserve_bytes = 512 * kMiB};
  }
  template <typename Call>
  static std::optional<Exception> Thrown(Call call) {
    try {
      call();
    } catch (const Exception& exception) {
      return exception;
    }
    return std::nullopt;
  }
  static const driver::CudaDriver& Cuda() {
    static const std::shared_ptr<const driver::CudaDriver> cuda = [] {
      auto loaded = driver::CudaDriver::Load({daemon_->runtime_dir() + "/simulated"});
      GPULEASE_CHECK(loaded.ok(), loaded.error().message);
      return *loaded;
    }();
    cuda::CUcontext context = nullptr;
    cuda->cuDevicePrimaryCtxRetain(&context, 0);
    cuda->cuCtxSetCurrent(context);
    return *cuda;
  }
  static void Fill(std::uint64_t address, unsigned char byte, Bytes size) {
    ASSERT_EQ(Cuda().cuMemsetD8(address, byte, size), cuda::CUDA_SUCCESS);
  }
  static bool Has(std::uint64_t address, unsigned char byte, Bytes size) {
    std::vector<unsigned char> bytes(size);
    if (Cuda().cuMemcpyDtoH(bytes.data(), address, size) != cuda::CUDA_SUCCESS) return false;
    return std::count(bytes.begin(), bytes.end(), byte) == static_cast<std::ptrdiff_t>(size);
  }

  static TemporaryDirectory* folder_;
  static KeeperProcess* keeper_;
  static DaemonProcess* daemon_;
};

TemporaryDirectory* SdkElasticTest::folder_ = nullptr;
KeeperProcess* SdkElasticTest::keeper_ = nullptr;
DaemonProcess* SdkElasticTest::daemon_ = nullptr;

TEST_F(SdkElasticTest, NoPointerMovesWhileItGrowsAndShrinks) {
  Client client(Here());
  Lease lease = client.Allocate(Elastic());
  EXPECT_EQ(lease.reserved_bytes(), 512 * kMiB);
  const Mapping mapped = lease.Map();
  const std::uint64_t address = mapped.device_pointer();
  Fill(address, 11, 2 * kMiB);
  EXPECT_TRUE(lease.Resize(16 * kMiB).empty());
  EXPECT_EQ(mapped.device_pointer(), address);
  EXPECT_EQ(mapped.size_bytes(), 16 * kMiB);
  EXPECT_EQ(lease.size_bytes(), 16 * kMiB);
  EXPECT_EQ(lease.chunk_sizes().size(), 5u) << "2 MiB, and 14 in chunks of at most 4";
  EXPECT_EQ(NotFree(), 16 * kMiB);
  EXPECT_TRUE(Has(address, 11, 2 * kMiB));
  EXPECT_TRUE(Has(address + 2 * kMiB, 0, 14 * kMiB)) << "what is new reads as zeros";
  Fill(address + 2 * kMiB, 22, 14 * kMiB);
  const std::vector<int> duplicates = lease.DuplicateDescriptors();
  EXPECT_EQ(duplicates.size(), 5u);
  for (const int duplicate : duplicates) close(duplicate);
  EXPECT_TRUE(lease.Resize(5 * kMiB).empty());
  EXPECT_EQ(mapped.size_bytes(), 6 * kMiB) << "chunks are freed whole";
  EXPECT_TRUE(Eventually([] { return NotFree() == 6 * kMiB; }));
  EXPECT_FALSE(Has(address + 6 * kMiB, 22, kMiB)) << "it is unmapped";
  EXPECT_TRUE(lease.Resize(8 * kMiB).empty());
  EXPECT_TRUE(Has(address, 11, 2 * kMiB) && Has(address + 2 * kMiB, 22, 4 * kMiB));
  EXPECT_TRUE(Has(address + 6 * kMiB, 0, 2 * kMiB)) << "fresh memory";
  const Mapping reading = lease.Map({.access = Access::kReadOnly});
  EXPECT_TRUE(lease.Resize(10 * kMiB).empty());
  EXPECT_TRUE(Has(reading.device_pointer() + 8 * kMiB, 0, 2 * kMiB)) << "every mapping grows";
}

TEST_F(SdkElasticTest, WhoHasItOpenFollowsAndSaysWhenHeHasLetGo) {
  Client owner(Here()), reader(Here());
  Lease lease = owner.Allocate(Elastic(2 * kMiB, "cache"));
  const Mapping mapped = lease.Map();
  (void)reader.NextEvent();
  Lease opened = reader.Open("cache", Access::kReadOnly);
  const Mapping read = opened.Map();
  const std::uint64_t address = read.device_pointer();
  EXPECT_FALSE(opened.Refresh()) << "it has what there is";
  ASSERT_TRUE(lease.Resize(8 * kMiB).empty());
  Fill(mapped.device_pointer(), 33, 8 * kMiB);
  std::optional<Event> event;
  do {
    event = reader.NextEvent(seconds(20));
  } while (event && event->type != EventType::kResized);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->lease_id, lease.id());
  EXPECT_EQ(read.size_bytes(), 2 * kMiB) << "not before it asks";
  EXPECT_TRUE(opened.Refresh());
  EXPECT_EQ(read.device_pointer(), address);
  EXPECT_EQ(read.size_bytes(), 8 * kMiB);
  EXPECT_TRUE(Has(address, 33, 8 * kMiB));
  auto holders = lease.Resize(2 * kMiB, milliseconds(5));
  ASSERT_EQ(holders.size(), 1u);
  EXPECT_EQ(holders[0].pid, getpid());
  EXPECT_EQ(lease.size_bytes(), 2 * kMiB) << "it is unmapped here";
  EXPECT_EQ(NotFree(), 8 * kMiB);
  EXPECT_TRUE(Has(address, 33, 8 * kMiB)) << "the reader has it still";
  std::thread lets_go([&] { EXPECT_TRUE(opened.Refresh()); });
  EXPECT_TRUE(lease.Resize(2 * kMiB, seconds(20)).empty());
  lets_go.join();
  EXPECT_EQ(read.size_bytes(), 2 * kMiB);
  EXPECT_TRUE(Eventually([] { return NotFree() == 2 * kMiB; }));
  // What is opened twice grows in both.
  ASSERT_TRUE(lease.Resize(4 * kMiB).empty());
  const Lease again = reader.Open("cache", Access::kReadOnly);
  EXPECT_EQ(again.size_bytes(), 4 * kMiB);
  EXPECT_EQ(read.size_bytes(), 4 * kMiB);
  EXPECT_EQ(Thrown([&] { opened.Resize(8 * kMiB); })->code(), ErrorCode::kFailedPrecondition);
}

TEST_F(SdkElasticTest, AShrinkThatWaitsIsUndoneByGrowing) {
  Client owner(Here()), reader(Here());
  Lease lease = owner.Allocate(Elastic(2 * kMiB, "cache"));
  const Mapping mapped = lease.Map();
  ASSERT_TRUE(lease.Resize(4 * kMiB).empty());
  Fill(mapped.device_pointer(), 44, 4 * kMiB);
  Lease opened = reader.Open("cache");
  const Mapping other = opened.Map();
  ASSERT_EQ(lease.Resize(2 * kMiB).size(), 1u);
  ASSERT_TRUE(lease.Resize(4 * kMiB).empty());
  EXPECT_TRUE(Has(mapped.device_pointer(), 44, 4 * kMiB)) << "nothing was freed";
  EXPECT_FALSE(opened.Refresh());
}

TEST_F(SdkElasticTest, AnyStepMayFailAndBothSidesAreAsBefore) {
  Client client(Here());
  Lease lease = client.Allocate(Elastic());
  const Mapping mapped = lease.Map();
  const Mapping reading = lease.Map({.access = Access::kReadOnly});
  const std::uint64_t address = mapped.device_pointer();
  Fill(address, 55, 2 * kMiB);
  ASSERT_TRUE(lease.Resize(14 * kMiB).empty());
  ASSERT_TRUE(lease.Resize(2 * kMiB).empty());
  ASSERT_TRUE(Eventually([] { return NotFree() == 2 * kMiB; }));
  simulated::Node node = daemon_->node();
  const std::size_t descriptors = OpenDescriptors(getpid());
  const std::size_t theirs = daemon_->settled_descriptors();
  for (const char* const step : {"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"}) {
    for (const std::int64_t nth : {1, 2, 3, 5}) {
      if (std::string(step) == "cuMemSetAccess" && nth > 2) continue;  // one a mapping
      ASSERT_TRUE(
          node.InjectFault(
                  {.function = step, .nth = nth, .pid = getpid(), .code = cuda::CUDA_ERROR_UNKNOWN})
              .ok());
      const auto thrown = Thrown([&] { lease.Resize(14 * kMiB); });
      node.ClearFaults();
      ASSERT_TRUE(thrown) << step << ", call " << nth;
      EXPECT_THAT(thrown->what(), HasSubstr(step));
      EXPECT_EQ(lease.size_bytes(), 2 * kMiB);
      EXPECT_TRUE(Eventually([] { return NotFree() == 2 * kMiB; })) << step << ", call " << nth;
      EXPECT_TRUE(Eventually([&] { return OpenDescriptors(getpid()) <= descriptors; }))
          << OpenDescriptors(getpid()) << ", before " << descriptors;
      EXPECT_TRUE(Eventually([&] { return daemon_->open_descriptors() <= theirs; }));
      EXPECT_TRUE(Has(address, 55, 2 * kMiB));
      ASSERT_TRUE(lease.Resize(14 * kMiB).empty()) << "a retry works";
      EXPECT_TRUE(Has(reading.device_pointer() + 2 * kMiB, 0, 12 * kMiB));
      ASSERT_TRUE(lease.Resize(2 * kMiB).empty());
    }
  }
  ASSERT_TRUE(lease.Resize(14 * kMiB).empty());
  Fill(address, 66, 14 * kMiB);
  ASSERT_TRUE(node.InjectFault({.function = "cuMemUnmap",
                                .nth = 2,
                                .times = 3,
                                .pid = getpid(),
                                .code = cuda::CUDA_ERROR_UNKNOWN})
                  .ok());
  EXPECT_THAT(Thrown([&] { lease.Resize(2 * kMiB); })->what(), HasSubstr("cuMemUnmap"));
  node.ClearFaults();
  EXPECT_TRUE(Eventually([] { return NotFree() == 14 * kMiB; })) << "what went before is free";
  EXPECT_TRUE(Has(address, 66, 14 * kMiB) && Has(reading.device_pointer(), 66, 14 * kMiB));
  EXPECT_TRUE(lease.Resize(2 * kMiB).empty());
}

TEST_F(SdkElasticTest, AGrowthWaitsForMemoryAsLongAsItIsToldTo) {
  Client client(Here()), other(Here());
  Lease lease = client.Allocate(Elastic());
  const Mapping mapped = lease.Map();
  std::optional<Lease> filler = other.Allocate({.size_bytes = kGiB - 4 * kMiB});
  EXPECT_EQ(Thrown([&] { lease.Resize(64 * kMiB); })->reason(), ErrorReason::kMemoryShort);
  EXPECT_EQ(Thrown([&] { lease.Resize(64 * kMiB, milliseconds(20)); })->reason(),
            ErrorReason::kWaitOver);
  EXPECT_EQ(lease.size_bytes(), 2 * kMiB);
  EXPECT_EQ(Thrown([&] { lease.Resize(513 * kMiB); })->reason(), ErrorReason::kBadField);
  std::thread grows([&] { EXPECT_TRUE(lease.Resize(64 * kMiB, seconds(30)).empty()); });
  EXPECT_TRUE(Eventually([] { return Node().gpus(0).memory().queue_length() == 1; }));
  filler.reset();
  grows.join();
  EXPECT_EQ(mapped.size_bytes(), 64 * kMiB);
  EXPECT_TRUE(Has(mapped.device_pointer() + 2 * kMiB, 0, 62 * kMiB));
}

TEST_F(SdkElasticTest, ARestartOfTheDaemonChangesNothing) {
  Client owner(Here()), reader(Here());
  Lease lease = owner.Allocate(Elastic(2 * kMiB, "cache"));
  const Mapping mapped = lease.Map();
  ASSERT_TRUE(lease.Resize(12 * kMiB).empty());
  Lease opened = reader.Open("cache");
  const Mapping other = opened.Map();
  ASSERT_TRUE(lease.Resize(20 * kMiB).empty());
  Fill(mapped.device_pointer(), 77, 20 * kMiB);
  // It waits for the reader, and a growth of another for memory, when the daemon dies.
  ASSERT_EQ(lease.Resize(4 * kMiB).size(), 1u);
  Lease second = owner.Allocate(Elastic());
  const Mapping second_mapped = second.Map();
  std::optional<Lease> filler = reader.Allocate({.size_bytes = kGiB - 32 * kMiB});
  std::thread grows([&] { EXPECT_TRUE(second.Resize(64 * kMiB, seconds(60)).empty()); });
  EXPECT_TRUE(Eventually([] { return Node().gpus(0).memory().queue_length() == 1; }));
  daemon_->Kill();
  daemon_->Start();
  EXPECT_TRUE(Has(mapped.device_pointer(), 77, 4 * kMiB));
  EXPECT_TRUE(Has(other.device_pointer(), 77, 12 * kMiB));
  EXPECT_EQ(lease.Resize(4 * kMiB).size(), 1u) << "it waits still";
  EXPECT_TRUE(opened.Refresh());
  EXPECT_TRUE(lease.Resize(4 * kMiB).empty());
  EXPECT_EQ(other.size_bytes(), 6 * kMiB);
  EXPECT_TRUE(Eventually([] { return Node().gpus(0).memory().queue_length() == 1; }))
      << "who waited asks again";
  filler.reset();
  grows.join();
  EXPECT_EQ(second_mapped.size_bytes(), 64 * kMiB);
  EXPECT_TRUE(Eventually([] { return NotFree() == 70 * kMiB; }));
  EXPECT_TRUE(lease.Resize(16 * kMiB).empty());
  EXPECT_TRUE(Has(mapped.device_pointer(), 77, 6 * kMiB));
  EXPECT_TRUE(Has(mapped.device_pointer() + 6 * kMiB, 0, 10 * kMiB));
  daemon_->Kill();
  daemon_->Start();
  EXPECT_TRUE(opened.Refresh());
  EXPECT_TRUE(Has(other.device_pointer(), 77, 6 * kMiB));
  EXPECT_EQ(other.size_bytes(), 16 * kMiB);
}

TEST_F(SdkElasticTest, ASealedOneKeepsItsSize) {
  Client owner(Here()), reader(Here());
  Lease lease = owner.Allocate(Elastic(2 * kMiB, "cache"));
  Lease opened = reader.Open("cache", Access::kReadOnly);
  ASSERT_TRUE(lease.Resize(4 * kMiB).empty());
  lease.Seal("v1");
  EXPECT_EQ(Thrown([&] { lease.Resize(6 * kMiB); })->reason(), ErrorReason::kSealed);
  EXPECT_EQ(Thrown([&] { lease.Resize(2 * kMiB); })->reason(), ErrorReason::kSealed);
  EXPECT_EQ(lease.size_bytes(), 4 * kMiB) << "what was unmapped for nothing is mapped again";
  EXPECT_TRUE(opened.Refresh());
  EXPECT_EQ(opened.size_bytes(), 4 * kMiB);
  const Lease fixed = owner.Allocate({.size_bytes = 2 * kMiB});
  EXPECT_EQ(fixed.reserved_bytes(), 0u);
}

}  // namespace
}  // namespace gpulease::e2e
