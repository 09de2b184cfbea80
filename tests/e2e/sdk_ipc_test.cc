// SPDX-License-Identifier: Apache-2.0
//
// Leases that are opened by a 64-byte handle: by the SDK, and by programs that know nothing of it.
#include <gmock/gmock.h>
#include <gpulease/gpulease.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>

#include "base/check.h"
#include "driver/cuda_driver.h"
#include "tests/contract/driver_peer.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/ipc_host_process.h"
#include "tests/e2e/keeper_process.h"

namespace gpulease::e2e {
namespace {

using ::gpulease::testing::DriverPeer;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr Bytes kSize = 6 * kMiB;

// One daemon for all: a process sees one simulated node in its life.
class SdkIpcTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryDirectory;
    keeper_ = new KeeperProcess(folder_->path() + "/run");
    daemon_ = new DaemonProcess({.simulate = "2x1GiB", .runtime_dir = folder_->path() + "/run"});
    testing::UseSimulatedNode(daemon_->runtime_dir() + "/simulated");
  }
  static void TearDownTestSuite() {
    delete daemon_;
    delete keeper_;
    delete folder_;
  }
  ~SdkIpcTest() override {
    EXPECT_TRUE(Eventually([] { return IsAllFree(Node()); })) << Node().ShortDebugString();
    EXPECT_TRUE(Eventually([] { return IpcHosts(daemon_->runtime_dir()).empty(); }));
  }
  static v1::GetNodeResponse Node() { return RawClient(daemon_->runtime_dir()).Node(); }
  static ::gpulease::ClientOptions Here() { return {.runtime_dir = daemon_->runtime_dir()}; }
  static AllocateOptions WithHandle(std::string name = "") {
    return {.size_bytes = kSize - 1000, .name = std::move(name), .ipc_handle = true};
  }
  static std::string Hex(const IpcHandle& handle) {
    std::string text;
    for (const unsigned char byte : handle.bytes) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", byte);
      text += two;
    }
    return text;
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
  static LeaseStatus StatusOf(Client& client, const Lease& lease) {
    for (const LeaseStatus& status : client.Leases()) {
      if (status.id == lease.id()) return status;
    }
    ADD_FAILURE() << "it is not listed";
    return {};
  }
  static unsigned char ByteAt(std::uint64_t address) {
    unsigned char byte = 0xee;
    EXPECT_EQ(Cuda().cuMemcpyDtoH(&byte, address, 1), cuda::CUDA_SUCCESS);
    return byte;
  }

  static TemporaryDirectory* folder_;
  static KeeperProcess* keeper_;
  static DaemonProcess* daemon_;
};

TemporaryDirectory* SdkIpcTest::folder_ = nullptr;
KeeperProcess* SdkIpcTest::keeper_ = nullptr;
DaemonProcess* SdkIpcTest::daemon_ = nullptr;

TEST_F(SdkIpcTest, AProgramThatKnowsHandlesAloneReadsAndWritesTheLease) {
  Client client(Here());
  const Lease lease = client.Allocate(WithHandle("tensor"));
  const IpcHandle handle = lease.ipc_handle();
  EXPECT_EQ(handle.offset_bytes, 0u);
  EXPECT_EQ(handle.size_bytes, kSize);
  EXPECT_TRUE(StatusOf(client, lease).ipc);
  const Mapping mapped = lease.Map();
  EXPECT_EQ(ByteAt(mapped.device_pointer()), 0);
  EXPECT_EQ(ByteAt(mapped.device_pointer() + kSize - 1), 0);
  ASSERT_EQ(Cuda().cuMemsetD8(mapped.device_pointer(), 0x11, kSize), cuda::CUDA_SUCCESS);
  DriverPeer program;
  ASSERT_EQ(program.Ask("open " + Hex(handle) + " " + std::to_string(kSize)), "CUDA_SUCCESS");
  EXPECT_EQ(program.Ask("read"), "11 11");
  EXPECT_EQ(program.Ask("fill 22"), "CUDA_SUCCESS");
  EXPECT_EQ(ByteAt(mapped.device_pointer() + kSize - 1), 0x22);
}

TEST_F(SdkIpcTest, WhoOpenedItByTheHandleKeepsTheBytesUnseenAndTheyComeBackAfterwards) {
  Client client(Here());
  Lease lease = client.Allocate(WithHandle());
  DriverPeer program;
  ASSERT_EQ(program.Ask("open " + Hex(lease.ipc_handle()) + " " + std::to_string(kSize)),
            "CUDA_SUCCESS");
  EXPECT_EQ(StatusOf(client, lease).holder_count, 1u) << "the importer is none";
  const int gpu = lease.gpu_uuid() == daemon_->node().uuid_text(0) ? 0 : 1;
  lease.Release();
  EXPECT_TRUE(Eventually([] { return IpcHosts(daemon_->runtime_dir()).empty(); }));
  EXPECT_EQ(daemon_->node().Used(gpu), kSize);
  EXPECT_FALSE(IsAllFree(Node())) << "the driver does not show them as free";
  program.Kill();
}

TEST_F(SdkIpcTest, OneProcessOpensItOnceHoweverOftenItIsMapped) {
  Client first(Here());
  Client second(Here());
  Lease lease = first.Allocate(WithHandle("shared"));
  Lease opened = second.Open("shared", Access::kReadOnly);
  EXPECT_EQ(opened.ipc_handle().bytes, lease.ipc_handle().bytes);
  std::optional<Mapping> one = lease.Map();
  std::optional<Mapping> reading = lease.Map({.access = Access::kReadOnly});
  std::optional<Mapping> other = opened.Map();
  EXPECT_EQ(one->device_pointer(), reading->device_pointer());
  EXPECT_EQ(one->device_pointer(), other->device_pointer());
  const std::uint64_t address = one->device_pointer();
  one.reset();
  reading.reset();
  EXPECT_EQ(ByteAt(address), 0) << "the other Client has it still";
  other.reset();
  unsigned char byte = 0;
  EXPECT_NE(Cuda().cuMemcpyDtoH(&byte, address, 1), cuda::CUDA_SUCCESS) << "closed with the last";
  EXPECT_EQ(ByteAt(lease.Map().device_pointer()), 0) << "and opened anew";
}

TEST_F(SdkIpcTest, ARestartOfTheDaemonChangesNothingForWhoHasIt) {
  Client client(Here());
  Lease lease = client.Allocate(WithHandle("through"));
  const IpcHandle handle = lease.ipc_handle();
  const Mapping mapped = lease.Map();
  ASSERT_EQ(Cuda().cuMemsetD8(mapped.device_pointer(), 0x33, kSize), cuda::CUDA_SUCCESS);
  daemon_->Kill();
  DriverPeer meanwhile;
  ASSERT_EQ(meanwhile.Ask("open " + Hex(handle) + " " + std::to_string(kSize)), "CUDA_SUCCESS");
  EXPECT_EQ(meanwhile.Ask("read"), "33 33");
  daemon_->Start();
  Client other(Here());
  const Lease opened = other.Open("through");
  EXPECT_EQ(opened.ipc_handle().bytes, handle.bytes);
  EXPECT_EQ(opened.ipc_handle().offset_bytes, handle.offset_bytes);
  EXPECT_EQ(opened.ipc_handle().size_bytes, handle.size_bytes);
  DriverPeer after;
  ASSERT_EQ(after.Ask("open " + Hex(opened.ipc_handle()) + " " + std::to_string(kSize)),
            "CUDA_SUCCESS");
  EXPECT_EQ(after.Ask("read"), "33 33");
  EXPECT_EQ(ByteAt(mapped.device_pointer()), 0x33);
}

TEST_F(SdkIpcTest, SaysWhatItCannotDo) {
  Client client(Here());
  const Lease plain = client.Allocate({.size_bytes = kSize});
  auto thrown = Thrown([&] { (void)plain.ipc_handle(); });
  ASSERT_TRUE(thrown);
  EXPECT_EQ(thrown->code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(thrown->what(), HasSubstr("AllocateOptions::ipc_handle"));
  AllocateOptions elastic = WithHandle();
  elastic.reserve_bytes = 64 * kMiB;
  thrown = Thrown([&] { (void)client.Allocate(elastic); });
  ASSERT_TRUE(thrown);
  EXPECT_EQ(thrown->code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(thrown->what(), HasSubstr("reserve_bytes"));
  AllocateOptions host = WithHandle();
  host.kind = MemoryKind::kHost;
  thrown = Thrown([&] { (void)client.Allocate(host); });
  ASSERT_TRUE(thrown);
  EXPECT_THAT(thrown->what(), HasSubstr("GPU memory"));
  AllocateOptions aligned = WithHandle();
  aligned.alignment_bytes = 64 * kMiB;
  thrown = Thrown([&] { (void)client.Allocate(aligned); });
  ASSERT_TRUE(thrown);
  EXPECT_THAT(thrown->what(), HasSubstr("alignment_bytes"));
  const Lease lease = client.Allocate(WithHandle());
  thrown = Thrown([&] { (void)lease.Map({.peer_gpu_uuids = {daemon_->node().uuid_text(0)}}); });
  ASSERT_TRUE(thrown);
  EXPECT_THAT(thrown->what(), HasSubstr("cuCtxEnablePeerAccess"));
}

TEST_F(SdkIpcTest, AnOpeningThatFailsLeavesNothingBehind) {
  Client client(Here());
  const Lease lease = client.Allocate(WithHandle());
  simulated::Node node = daemon_->node();
  for (const char* const step :
       {"cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuIpcOpenMemHandle"}) {
    ASSERT_TRUE(node.InjectFault({.function = step, .pid = getpid(), .code = 999}).ok());
    const auto thrown = Thrown([&] { (void)lease.Map(); });
    ASSERT_TRUE(thrown) << step;
    EXPECT_THAT(thrown->what(), HasSubstr(step));
    node.ClearFaults();
    EXPECT_EQ(ByteAt(lease.Map().device_pointer()), 0) << step;
  }
}

}  // namespace
}  // namespace gpulease::e2e

int main(int argc, char** argv) {
  int status = 0;
  if (gpulease::testing::RanAsPeer(argc, argv, &status)) return status;
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
