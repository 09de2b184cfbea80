// SPDX-License-Identifier: Apache-2.0
//
// Memory that is given back and brought back under the pointers that the SDK gave, in its owner and
// in those who have it open; each step that can fail fails; and the daemon restarts at each.
#include <gmock/gmock.h>
#include <gpulease/gpulease.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
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
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Bytes kSize = 12 * kMiB;

// One daemon for all: a process sees one simulated node in its life.
class SdkSuspendTest : public ::testing::Test {
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
  ~SdkSuspendTest() override {
    daemon_->node().ClearFaults();
    EXPECT_TRUE(Eventually([] { return IsAllFree(Node()) && HostBytes() == 0; }))
        << Node().ShortDebugString() << "\n"
        << daemon_->log();
  }
  static v1::GetNodeResponse Node() { return RawClient(daemon_->runtime_dir()).Node(); }
  static Bytes DeviceBytes() {
    const v1::GetNodeResponse node = Node();
    return node.gpus(0).memory().total_bytes() - node.gpus(0).memory().free_bytes();
  }
  static Bytes HostBytes() {
    const v1::GetNodeResponse node = Node();
    Bytes bytes = 0;
    for (const v1::HostMemory& host : node.host()) bytes += host.memory().leased_bytes();
    return bytes;
  }
  static ::gpulease::ClientOptions Here() { return {.runtime_dir = daemon_->runtime_dir()}; }
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
  // As its owner is shown it.
  static LeaseStatus Shown(Client& client, const Lease& lease) {
    for (const LeaseStatus& one : client.Leases()) {
      if (one.id == lease.id()) return one;
    }
    return {};
  }
  // Other bytes at each offset, so that nothing that is moved goes unseen.
  static std::vector<unsigned char> Pattern(int seed, Bytes size = kSize) {
    std::vector<unsigned char> bytes(size);
    for (Bytes i = 0; i < size; ++i)
      bytes[i] = static_cast<unsigned char>((i * 2654435761u >> 13) + static_cast<Bytes>(seed));
    return bytes;
  }
  static void Write(std::uint64_t address, const std::vector<unsigned char>& bytes) {
    ASSERT_EQ(Cuda().cuMemcpyHtoD(address, bytes.data(), bytes.size()), cuda::CUDA_SUCCESS);
  }
  static bool Has(std::uint64_t address, const std::vector<unsigned char>& bytes) {
    std::vector<unsigned char> read(bytes.size());
    return Cuda().cuMemcpyDtoH(read.data(), address, read.size()) == cuda::CUDA_SUCCESS &&
           read == bytes;
  }
  // Whether anything is mapped there.
  static bool IsMapped(std::uint64_t address) {
    unsigned char byte = 0;
    return Cuda().cuMemcpyDtoH(&byte, address, 1) == cuda::CUDA_SUCCESS;
  }
  static std::optional<Event> Next(Client& client, EventType type) {
    std::optional<Event> event;
    do {
      event = client.NextEvent(seconds(20));
    } while (event && event->type != type);
    return event;
  }

  static TemporaryDirectory* folder_;
  static KeeperProcess* keeper_;
  static DaemonProcess* daemon_;
};

TemporaryDirectory* SdkSuspendTest::folder_ = nullptr;
KeeperProcess* SdkSuspendTest::keeper_ = nullptr;
DaemonProcess* SdkSuspendTest::daemon_ = nullptr;

TEST_F(SdkSuspendTest, MemoryGoesAndComesBackUnderTheSamePointers) {
  Client client(Here());
  Lease lease = client.Allocate({.size_bytes = kSize, .name = "weights"});
  const Mapping mapped = lease.Map();
  const Mapping reading = lease.Map({.access = Access::kReadOnly});
  const std::uint64_t address = mapped.device_pointer();
  const auto contents = Pattern(1);
  Write(address, contents);
  lease.PrepareSuspend();
  EXPECT_EQ(HostBytes(), kSize);
  std::vector<std::uint64_t> progress;
  const auto note = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, kSize);
    progress.push_back(done);
  };
  for (int round = 0; round < 3; ++round) {
    progress.clear();
    EXPECT_TRUE(lease.Suspend({.progress = note}).empty());
    EXPECT_TRUE(lease.suspended());
    EXPECT_THAT(progress, ElementsAre(kSize));
    EXPECT_TRUE(Eventually([] { return DeviceBytes() == 0; }));
    EXPECT_EQ(HostBytes(), kSize) << "the same room";
    EXPECT_FALSE(IsMapped(address));
    EXPECT_EQ(lease.size_bytes(), 0u);
    EXPECT_EQ(Shown(client, lease).residence, Residence::kSuspended);
    EXPECT_EQ(Shown(client, lease).suspended_bytes, kSize);
    progress.clear();
    lease.Resume({.wait = seconds(20), .progress = note});
    EXPECT_THAT(progress, ElementsAre(kSize));
    EXPECT_FALSE(lease.suspended());
    EXPECT_EQ(mapped.device_pointer(), address);
    EXPECT_EQ(mapped.size_bytes(), kSize);
    EXPECT_EQ(lease.size_bytes(), kSize);
    EXPECT_TRUE(Has(address, contents));
    EXPECT_TRUE(Has(reading.device_pointer(), contents)) << "every mapping";
    EXPECT_NE(Cuda().cuMemsetD8(reading.device_pointer(), 1, 1), cuda::CUDA_SUCCESS)
        << "for reading, as before";
  }
  lease.DropSuspendRoom();
  EXPECT_TRUE(Eventually([] { return HostBytes() == 0; }));
}

TEST_F(SdkSuspendTest, WhatIsNotWantedIsNotCopied) {
  Client client(Here());
  Lease lease = client.Allocate({.size_bytes = kSize});
  const Mapping mapped = lease.Map();
  Write(mapped.device_pointer(), Pattern(2));
  EXPECT_TRUE(lease.Suspend({.discard = true}).empty());
  EXPECT_EQ(HostBytes(), 0u);
  EXPECT_TRUE(Eventually([] { return DeviceBytes() == 0; }));
  lease.Resume();
  EXPECT_TRUE(Has(mapped.device_pointer(), std::vector<unsigned char>(kSize)));
}

TEST_F(SdkSuspendTest, AnElasticOneAndOneThatIsNotMappedAndASealedOne) {
  Client client(Here());
  Lease elastic = client.Allocate({.size_bytes = 2 * kMiB, .reserve_bytes = 64 * kMiB});
  std::optional<Mapping> mapped = elastic.Map();
  ASSERT_TRUE(elastic.Resize(kSize).empty());
  const std::uint64_t address = mapped->device_pointer();
  Write(address, Pattern(3));
  ASSERT_TRUE(elastic.Suspend().empty());
  EXPECT_EQ(Thrown([&] { elastic.Resize(16 * kMiB); })->reason(), ErrorReason::kSuspended);
  EXPECT_EQ(Thrown([&] { elastic.Map(); })->reason(), ErrorReason::kSuspended);
  EXPECT_EQ(Thrown([&] { elastic.DuplicateDescriptors(); })->reason(), ErrorReason::kSuspended);
  EXPECT_EQ(Thrown([&] { elastic.DropSuspendRoom(); })->reason(), ErrorReason::kSuspended);
  EXPECT_FALSE(elastic.Refresh());
  elastic.Resume({.wait = seconds(20)});
  EXPECT_TRUE(Has(address, Pattern(3)));
  ASSERT_TRUE(elastic.Resize(16 * kMiB).empty()) << "it grows on";
  EXPECT_EQ(mapped->device_pointer(), address);
  ASSERT_TRUE(elastic.Suspend().empty()) << "and the room with it";
  elastic.Resume({.wait = seconds(20)});
  EXPECT_TRUE(Has(address, Pattern(3)));
  mapped.reset();
  ASSERT_TRUE(elastic.Suspend().empty()) << "nothing is mapped";
  elastic.Resume({.wait = seconds(20)});
  mapped = elastic.Map();
  EXPECT_TRUE(Has(mapped->device_pointer(), Pattern(3)));
  elastic.Seal("v1");
  ASSERT_TRUE(elastic.Suspend().empty());
  elastic.Resume({.wait = seconds(20)});
  EXPECT_TRUE(Has(mapped->device_pointer(), Pattern(3)));
  EXPECT_TRUE(elastic.sealed());
}

TEST_F(SdkSuspendTest, WhoHasItOpenLetsGoFirstAndHasItLast) {
  Client owner(Here()), partner(Here());
  Lease lease = owner.Allocate({.size_bytes = kSize, .name = "weights"});
  const Mapping mapped = lease.Map();
  Write(mapped.device_pointer(), Pattern(4));
  (void)partner.NextEvent();
  Lease opened = partner.Open("weights");
  const Mapping other = opened.Map();
  const std::uint64_t address = other.device_pointer();
  const auto refused = Thrown([&] { lease.Suspend(); });
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->reason(), ErrorReason::kNotPartaking);
  EXPECT_THAT(refused->what(), HasSubstr("process " + std::to_string(getpid())));
  EXPECT_TRUE(Has(mapped.device_pointer(), Pattern(4)) && Has(address, Pattern(4)));

  std::vector<std::string> calls;
  const auto hooks = [&calls](const std::string& who) {
    return SuspendHooks{.before = [&calls, who] { calls.push_back(who + " before"); },
                        .after = [&calls, who] { calls.push_back(who + " after"); }};
  };
  lease.TakePart(hooks("owner"));
  opened.TakePart(hooks("partner"));
  const auto waits = lease.Suspend();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].pid, getpid());
  EXPECT_FALSE(lease.suspended());
  EXPECT_THAT(calls, ElementsAre());
  // What he writes before he lets go is in the copy.
  Write(address, Pattern(5));
  EXPECT_EQ(Next(partner, EventType::kSuspending)->lease_id, lease.id());
  std::thread lets_go([&] { EXPECT_TRUE(opened.Refresh()); });
  EXPECT_TRUE(lease.Suspend({.wait = seconds(20)}).empty());
  lets_go.join();
  EXPECT_TRUE(opened.suspended());
  EXPECT_THAT(calls, ElementsAre("partner before", "owner before"));
  EXPECT_TRUE(Eventually([] { return DeviceBytes() == 0; }));
  EXPECT_FALSE(IsMapped(address));
  EXPECT_FALSE(opened.Refresh()) << "nothing new";
  EXPECT_EQ(Thrown([&] { partner.Open("weights"); })->reason(), ErrorReason::kSuspended);
  lease.Resume({.wait = seconds(20)});
  EXPECT_EQ(Next(partner, EventType::kResumed)->lease_id, lease.id());
  EXPECT_FALSE(IsMapped(address)) << "not before it asks";
  EXPECT_TRUE(opened.Refresh());
  EXPECT_EQ(other.device_pointer(), address);
  EXPECT_TRUE(Has(address, Pattern(5)) && Has(mapped.device_pointer(), Pattern(5)));
  EXPECT_THAT(calls, ElementsAre("partner before", "owner before", "owner after", "partner after"));
  EXPECT_EQ(Thrown([&] { opened.Suspend(); })->code(), ErrorCode::kFailedPrecondition);
}

TEST_F(SdkSuspendTest, ASuspendThatWaitsIsCalledOff) {
  Client owner(Here()), partner(Here());
  Lease lease = owner.Allocate({.size_bytes = kSize, .name = "weights"});
  const Mapping mapped = lease.Map();
  Write(mapped.device_pointer(), Pattern(6));
  Lease quick = partner.Open("weights");
  quick.TakePart();
  const Mapping other = quick.Map();
  Client slow_client(Here());
  Lease slow = slow_client.Open("weights");
  slow.TakePart();
  ASSERT_EQ(lease.Suspend({.wait = milliseconds(5)}).size(), 2u);
  EXPECT_TRUE(quick.Refresh());
  ASSERT_EQ(lease.Suspend().size(), 1u) << "says for whom it waits";
  lease.Resume();
  EXPECT_TRUE(Has(mapped.device_pointer(), Pattern(6)));
  EXPECT_TRUE(quick.Refresh());
  EXPECT_TRUE(Has(other.device_pointer(), Pattern(6)));
}

TEST_F(SdkSuspendTest, AResumeWaitsForMemoryAsLongAsItIsToldTo) {
  Client client(Here()), other(Here());
  Lease lease = client.Allocate({.size_bytes = kSize});
  const Mapping mapped = lease.Map();
  Write(mapped.device_pointer(), Pattern(7));
  ASSERT_TRUE(lease.Suspend().empty());
  std::optional<Lease> filler = other.Allocate({.size_bytes = kGiB, .wait = seconds(20)});
  EXPECT_EQ(Thrown([&] { lease.Resume(); })->reason(), ErrorReason::kMemoryShort);
  EXPECT_EQ(Thrown([&] { lease.Resume({.wait = milliseconds(20)}); })->reason(),
            ErrorReason::kWaitOver);
  EXPECT_TRUE(lease.suspended());
  std::thread resumes([&] { lease.Resume({.wait = seconds(60)}); });
  EXPECT_TRUE(Eventually([] { return Node().gpus(0).memory().queue_length() == 1; }));
  filler.reset();
  resumes.join();
  EXPECT_TRUE(Has(mapped.device_pointer(), Pattern(7)));
}

TEST_F(SdkSuspendTest, WhatHooksAndProgressThrowCallsItOff) {
  Client client(Here());
  Lease lease = client.Allocate({.size_bytes = kSize});
  const Mapping mapped = lease.Map();
  Write(mapped.device_pointer(), Pattern(8));
  int after = 0;
  lease.TakePart({.before = [] { throw std::runtime_error("in use"); }, .after = [&] { ++after; }});
  EXPECT_THROW(lease.Suspend(), std::runtime_error);
  EXPECT_EQ(Shown(client, lease).residence, Residence::kResident);
  EXPECT_EQ(after, 0);
  lease.TakePart({.after = [&] { ++after; }});
  const auto stop = [](std::uint64_t, std::uint64_t) { throw std::runtime_error("enough"); };
  EXPECT_THROW(lease.Suspend({.progress = stop}), std::runtime_error);
  EXPECT_EQ(after, 1) << "what was undone is done again";
  EXPECT_FALSE(lease.suspended());
  EXPECT_TRUE(Has(mapped.device_pointer(), Pattern(8)));
  ASSERT_TRUE(lease.Suspend().empty());
  EXPECT_THROW(lease.Resume({.wait = seconds(20), .progress = stop}), std::runtime_error);
  EXPECT_TRUE(lease.suspended());
  EXPECT_TRUE(Eventually([] { return DeviceBytes() == 0; }));
  lease.Resume({.wait = seconds(20)});
  EXPECT_EQ(after, 2);
  EXPECT_TRUE(Has(mapped.device_pointer(), Pattern(8)));
}

TEST_F(SdkSuspendTest, AnyStepMayFailAndBothSidesAreAsBefore) {
  Client client(Here());
  Lease lease = client.Allocate({.size_bytes = kSize});
  const Mapping mapped = lease.Map();
  const Mapping reading = lease.Map({.access = Access::kReadOnly});
  const std::uint64_t address = mapped.device_pointer();
  Write(address, Pattern(9));
  lease.PrepareSuspend();
  // What is made on first use is made before anything is counted.
  ASSERT_TRUE(lease.Suspend().empty());
  lease.Resume({.wait = seconds(20)});
  simulated::Node node = daemon_->node();
  struct Step {
    const char* function;
    std::int64_t nth;
    std::int64_t times;
  };
  const auto inject = [&](const Step& step, pid_t pid) {
    return node
        .InjectFault({.function = step.function,
                      .nth = step.nth,
                      .times = step.times,
                      .pid = pid,
                      .code = cuda::CUDA_ERROR_UNKNOWN})
        .ok();
  };
  const std::size_t descriptors = OpenDescriptors(getpid());
  const std::size_t theirs = daemon_->settled_descriptors();
  // In order: the context, the mapping that is copied from, the stream, the copy, the unmapping (of
  // the copy's own mapping, all at once and each chunk by itself, and then of two ranges).
  for (const Step& step : std::vector<Step>{{"cuCtxSynchronize", 1, 1},
                                            {"cuMemAddressReserve", 1, 1},
                                            {"cuMemImportFromShareableHandle", 1, 1},
                                            {"cuMemImportFromShareableHandle", 3, 1},
                                            {"cuMemMap", 2, 1},
                                            {"cuMemSetAccess", 1, 1},
                                            {"cuStreamCreate", 1, 1},
                                            {"cuMemcpyDtoHAsync", 1, 1},
                                            {"cuStreamSynchronize", 1, 1},
                                            {"cuMemUnmap", 2, 2},
                                            {"cuMemUnmap", 3, 2}}) {
    ASSERT_TRUE(inject(step, getpid()));
    const auto thrown = Thrown([&] { lease.Suspend(); });
    node.ClearFaults();
    ASSERT_TRUE(thrown) << step.function << ", call " << step.nth;
    EXPECT_THAT(thrown->what(), HasSubstr(step.function));
    EXPECT_FALSE(lease.suspended());
    EXPECT_EQ(Shown(client, lease).residence, Residence::kResident);
    EXPECT_TRUE(Has(address, Pattern(9)) && Has(reading.device_pointer(), Pattern(9)))
        << step.function << ", call " << step.nth;
    EXPECT_EQ(DeviceBytes(), kSize);
    EXPECT_TRUE(Eventually([&] { return OpenDescriptors(getpid()) <= descriptors; }))
        << step.function << ": " << OpenDescriptors(getpid()) << ", before " << descriptors;
    EXPECT_TRUE(Eventually([&] { return daemon_->open_descriptors() <= theirs; }));
    ASSERT_TRUE(lease.Suspend().empty()) << "a retry works";
    lease.Resume({.wait = seconds(20)});
    ASSERT_TRUE(Has(address, Pattern(9)));
  }
  ASSERT_TRUE(lease.Suspend().empty());
  ASSERT_TRUE(Eventually([] { return DeviceBytes() == 0; }));
  const std::size_t suspended = OpenDescriptors(getpid());
  const std::size_t theirs_suspended = daemon_->settled_descriptors();
  // In the daemon: the chunks. Here: two ranges, the mapping that is copied to, the copy.
  for (const Step& step : std::vector<Step>{{"cuMemCreate", 2, 1},
                                            {"cuMemExportToShareableHandle", 3, 1},
                                            {"cuMemImportFromShareableHandle", 1, 1},
                                            {"cuMemImportFromShareableHandle", 5, 1},
                                            {"cuMemImportFromShareableHandle", 8, 1},
                                            {"cuMemMap", 4, 1},
                                            {"cuMemSetAccess", 1, 1},
                                            {"cuMemSetAccess", 2, 1},
                                            {"cuMemSetAccess", 3, 1},
                                            {"cuCtxSynchronize", 1, 1},
                                            {"cuMemAddressReserve", 1, 1},
                                            {"cuStreamCreate", 1, 1},
                                            {"cuMemcpyHtoDAsync", 1, 1},
                                            {"cuStreamSynchronize", 1, 1}}) {
    const bool here = std::string(step.function) != "cuMemCreate" &&
                      std::string(step.function) != "cuMemExportToShareableHandle";
    ASSERT_TRUE(inject(step, here ? getpid() : daemon_->pid()));
    const auto thrown = Thrown([&] { lease.Resume({.wait = seconds(20)}); });
    node.ClearFaults();
    ASSERT_TRUE(thrown) << step.function << ", call " << step.nth;
    EXPECT_THAT(thrown->what(), HasSubstr(step.function));
    EXPECT_TRUE(lease.suspended());
    EXPECT_EQ(Shown(client, lease).residence, Residence::kSuspended) << step.function;
    EXPECT_FALSE(IsMapped(address));
    EXPECT_TRUE(Eventually([] { return DeviceBytes() == 0; })) << step.function;
    EXPECT_TRUE(Eventually([&] { return OpenDescriptors(getpid()) <= suspended; }))
        << step.function << ": " << OpenDescriptors(getpid()) << ", before " << suspended;
    EXPECT_TRUE(Eventually([&] { return daemon_->open_descriptors() <= theirs_suspended; }));
    lease.Resume({.wait = seconds(20)});
    EXPECT_TRUE(Has(address, Pattern(9)) && Has(reading.device_pointer(), Pattern(9)));
    ASSERT_TRUE(lease.Suspend().empty());
    ASSERT_TRUE(Eventually([] { return DeviceBytes() == 0; }));
  }
}

TEST_F(SdkSuspendTest, WithoutPinnedMemoryNothingHappens) {
  Client client(Here());
  Lease lease = client.Allocate({.size_bytes = kSize});
  const Mapping mapped = lease.Map();
  Write(mapped.device_pointer(), Pattern(10));
  simulated::Node node = daemon_->node();
  ASSERT_TRUE(node.InjectFault({.function = "cuMemHostRegister",
                                .nth = 1,
                                .pid = getpid(),
                                .code = cuda::CUDA_ERROR_OUT_OF_MEMORY})
                  .ok());
  EXPECT_EQ(Thrown([&] { lease.Suspend(); })->reason(), ErrorReason::kHostMemoryShort);
  node.ClearFaults();
  EXPECT_EQ(Shown(client, lease).residence, Residence::kResident) << "nobody was asked";
  EXPECT_TRUE(Eventually([] { return HostBytes() == 0; }));
  EXPECT_TRUE(Has(mapped.device_pointer(), Pattern(10)));
  ASSERT_TRUE(lease.Suspend().empty());
  lease.Resume({.wait = seconds(20)});
  EXPECT_TRUE(Has(mapped.device_pointer(), Pattern(10)));
}

TEST_F(SdkSuspendTest, TheDaemonMayRestartAtEachStep) {
  // In turns: a daemon that is killed again and again at once leaves what it took up alone.
  bool killed = false;
  const auto restart = [&killed] {
    killed = !killed;
    if (killed) {
      daemon_->Kill();
    } else {
      EXPECT_EQ(daemon_->Stop(), 0);
    }
    daemon_->Start();
  };
  Client owner(Here()), partner(Here());
  Lease lease = owner.Allocate({.size_bytes = kSize, .name = "weights"});
  const Mapping mapped = lease.Map();
  Write(mapped.device_pointer(), Pattern(11));
  Lease opened = partner.Open("weights");
  const Mapping other = opened.Map();
  opened.TakePart();
  restart();
  ASSERT_EQ(lease.Suspend().size(), 1u) << "who takes part still does";
  restart();
  EXPECT_EQ(Shown(owner, lease).residence, Residence::kSuspending);
  EXPECT_TRUE(opened.Refresh());
  restart();
  ASSERT_TRUE(lease.Suspend().empty());
  restart();
  EXPECT_EQ(Shown(owner, lease).residence, Residence::kSuspended);
  EXPECT_TRUE(Eventually([] { return DeviceBytes() == 0; }));
  EXPECT_FALSE(opened.Refresh());
  // While it waits for memory.
  std::optional<Lease> filler = partner.Allocate({.size_bytes = kGiB, .wait = seconds(20)});
  std::thread resumes([&] { lease.Resume({.wait = seconds(60)}); });
  EXPECT_TRUE(Eventually([] { return Node().gpus(0).memory().queue_length() == 1; }));
  restart();
  EXPECT_TRUE(Eventually([] { return Node().gpus(0).memory().queue_length() == 1; }))
      << "who waited asks again";
  filler.reset();
  resumes.join();
  EXPECT_TRUE(Has(mapped.device_pointer(), Pattern(11)));
  restart();
  EXPECT_TRUE(opened.Refresh());
  EXPECT_TRUE(Has(other.device_pointer(), Pattern(11)));
  // With the contents in the room and the memory there.
  ASSERT_EQ(lease.Suspend().size(), 1u);
  EXPECT_TRUE(opened.Refresh());
  ASSERT_TRUE(lease.Suspend().empty());
  bool once = false;
  lease.Resume({.wait = seconds(20), .progress = [&](std::uint64_t, std::uint64_t) {
                  if (!std::exchange(once, true)) restart();
                }});
  EXPECT_TRUE(Has(mapped.device_pointer(), Pattern(11)));
  EXPECT_TRUE(opened.Refresh());
  EXPECT_TRUE(Has(other.device_pointer(), Pattern(11)));
  ASSERT_EQ(lease.Suspend().size(), 1u);
  EXPECT_TRUE(opened.Refresh());
  once = false;
  ASSERT_TRUE(lease
                  .Suspend({.progress =
                                [&](std::uint64_t, std::uint64_t) {
                                  if (!std::exchange(once, true)) restart();
                                }})
                  .empty());
  EXPECT_TRUE(Eventually([] { return DeviceBytes() == 0; }));
  lease.Resume({.wait = seconds(20)});
  EXPECT_TRUE(Has(mapped.device_pointer(), Pattern(11)));
}

}  // namespace
}  // namespace gpulease::e2e
