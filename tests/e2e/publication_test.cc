// SPDX-License-Identifier: Apache-2.0
//
// What is published with a lease, between real processes over the real daemon and simulated GPUs,
// whose work is done as soon as it is asked for; a fault makes an event look as if it were not.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gpulease/gpulease.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "driver/cuda_driver.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/forked_program.h"
#include "tests/e2e/keeper_process.h"

namespace gpulease::e2e {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Leader = ForkedProgram::Leader;

constexpr char kGone[] = "error 10 40: ";     // kAborted, kPeerGone
constexpr char kTimedOut[] = "error 4 13: ";  // kDeadlineExceeded, kWaitOver

// The driver, a context and a stream, as a program has them.
struct Gpu {
  explicit Gpu(const std::string& directory) {
    auto loaded = driver::CudaDriver::Load({directory + "/simulated"});
    GPULEASE_CHECK(loaded.ok(), "the simulated driver");
    cuda = *loaded;
    cuda::CUcontext context = nullptr;
    GPULEASE_CHECK(
        cuda->cuDevicePrimaryCtxRetain(&context, 0) == cuda::CUDA_SUCCESS &&
            cuda->cuCtxSetCurrent(context) == cuda::CUDA_SUCCESS &&
            cuda->cuStreamCreate(&stream, cuda::kStreamNonBlocking) == cuda::CUDA_SUCCESS,
        "a stream");
  }
  std::shared_ptr<const driver::CudaDriver> cuda;
  cuda::CUstream stream = nullptr;
};

std::string Failure(const Exception& error) {
  return "error " + std::to_string(static_cast<int>(error.code())) + " " +
         std::to_string(static_cast<int>(error.reason())) + ": " + error.what();
}

// Says what the call gives, or the error.
template <typename Call>
void Try(Leader& leader, Call call) {
  try {
    leader.Say(std::to_string(call()));
  } catch (const Exception& error) {
    leader.Say(Failure(error));
  }
}

// Allocates the lease, then does as it is told.
void RunPublisher(Leader& leader, const std::string& directory, MemoryKind kind, bool opens) {
  Gpu gpu(directory);
  Client client({.runtime_dir = directory});
  Lease lease =
      opens
          ? client.Open("frames")
          : client.Allocate({.size_bytes = 4096, .kind = kind, .name = "frames", .ordered = true});
  leader.Say("ready");
  unsigned char value = 0;
  for (;;) {
    const std::string told = leader.Await();
    if (told == "write") {
      Mapping mapped = lease.Map({.register_with_cuda = kind == MemoryKind::kHost});
      ++value;
      GPULEASE_CHECK(
          gpu.cuda->cuMemsetD8(mapped.device_pointer(), value, 4096) == cuda::CUDA_SUCCESS,
          "write");
      Try(leader, [&] { return lease.Publish(gpu.stream); });
    } else if (told == "publish") {
      Try(leader, [&] { return lease.Publish(); });
    } else if (told == "stream") {
      Try(leader, [&] { return lease.Publish(gpu.stream); });
    } else if (told == "close") {
      lease.Close();
      leader.Say("closed");
    } else if (told == "release") {
      lease.Release();
      leader.Say("released");
    }
  }
}

// Opens the lease, then waits for each number that it is told.
void RunWaiter(Leader& leader, const std::string& directory, Access access) {
  Gpu gpu(directory);
  Client client({.runtime_dir = directory});
  Lease lease = client.Open("frames", access);
  leader.Say("ready");
  for (;;) {
    const std::string told = leader.Await();
    if (told == "publish") {
      Try(leader, [&] { return lease.Publish(); });
    } else if (told == "read") {
      Mapping mapped = lease.Map();
      unsigned char value = 0;
      GPULEASE_CHECK(
          gpu.cuda->cuMemcpyDtoH(&value, mapped.device_pointer(), 1) == cuda::CUDA_SUCCESS, "read");
      leader.Say(std::to_string(value));
    } else if (told.starts_with("stream ")) {
      Try(leader, [&] {
        return lease.WaitPublished(std::stoull(told.substr(7)), gpu.stream, seconds(60));
      });
    } else if (told.starts_with("brief ")) {
      Try(leader,
          [&] { return lease.WaitPublished(std::stoull(told.substr(6)), milliseconds(20)); });
    } else {
      Try(leader, [&] { return lease.WaitPublished(std::stoull(told), seconds(60)); });
    }
  }
}

class PublicationTest : public ::testing::Test {
 protected:
  explicit PublicationTest(bool with_keeper = false) {
    if (with_keeper) keeper_ = std::make_unique<KeeperProcess>(folder_.path() + "/run");
    daemon_ = std::make_unique<DaemonProcess>(
        DaemonOptions{.simulate = "1x1GiB", .runtime_dir = folder_.path() + "/run"});
    descriptors_ = daemon_->settled_descriptors();
  }
  ~PublicationTest() override {
    daemon_->node().ClearFaults();
    parties_.clear();
    EXPECT_TRUE(Eventually([&] { return IsAllFree(RawClient(daemon_->runtime_dir()).Node()); }));
    EXPECT_TRUE(Eventually([&] { return daemon_->open_descriptors() <= descriptors_; }));
  }
  ForkedProgram& Run(const std::function<void(Leader&, const std::string&)>& work) {
    const std::string directory = daemon_->runtime_dir();
    parties_.push_back(
        std::make_unique<ForkedProgram>([=](Leader& leader) { work(leader, directory); }));
    EXPECT_EQ(parties_.back()->Hear(), "ready");
    return *parties_.back();
  }
  ForkedProgram& Publisher(MemoryKind kind = MemoryKind::kDevice, bool opens = false) {
    return Run([=](Leader& leader, const std::string& directory) {
      RunPublisher(leader, directory, kind, opens);
    });
  }
  ForkedProgram& Waiter(Access access = Access::kReadWrite) {
    return Run([=](Leader& leader, const std::string& directory) {
      RunWaiter(leader, directory, access);
    });
  }
  static std::string Ask(ForkedProgram& party, const std::string& text) {
    party.Tell(text);
    return party.Hear();
  }
  void Inject(const std::string& function, const ForkedProgram& party, std::uint32_t code,
              std::int64_t times) {
    const Status injected = daemon_->node().InjectFault(
        {.function = function, .times = times, .pid = party.pid(), .code = code});
    ASSERT_TRUE(injected.ok()) << injected.error().message;
  }

  TemporaryDirectory folder_;
  std::unique_ptr<KeeperProcess> keeper_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::size_t descriptors_ = 0;
  std::vector<std::unique_ptr<ForkedProgram>> parties_;
};

TEST_F(PublicationTest, WhatWasWrittenBeforeItIsThereAfterIt) {
  ForkedProgram& publisher = Publisher();
  ForkedProgram& reader = Waiter(Access::kReadOnly);
  ForkedProgram& other = Waiter();
  for (int i = 1; i <= 3; ++i) {
    reader.Tell(std::to_string(i));
    other.Tell("stream " + std::to_string(i));
    EXPECT_EQ(Ask(publisher, "write"), std::to_string(i));
    EXPECT_EQ(reader.Hear(), std::to_string(i));
    EXPECT_EQ(other.Hear(), std::to_string(i));
    EXPECT_EQ(Ask(reader, "read"), std::to_string(i));
  }
  EXPECT_THAT(Ask(reader, "publish"), HasSubstr("was opened for reading"));
  EXPECT_THAT(Ask(reader, "brief 4"), AllOf(StartsWith(kTimedOut), HasSubstr("3 were published")));
}

TEST_F(PublicationTest, HostMemoryIsPublishedByTheProcessorAndAfterAStreamAlike) {
  ForkedProgram& publisher = Publisher(MemoryKind::kHost);
  ForkedProgram& waiter = Waiter();
  EXPECT_EQ(Ask(publisher, "publish"), "1");
  EXPECT_EQ(Ask(waiter, "1"), "1");
  EXPECT_EQ(Ask(publisher, "write"), "2");
  EXPECT_EQ(Ask(waiter, "2"), "2");
  EXPECT_EQ(Ask(waiter, "read"), "1");
}

TEST_F(PublicationTest, ADeadPublisherEndsTheWaitAndTheNextOneTakesOver) {
  ForkedProgram& publisher = Publisher();
  ForkedProgram& waiter = Waiter();
  ForkedProgram& next = Publisher(MemoryKind::kDevice, true);
  EXPECT_EQ(Ask(publisher, "write"), "1");
  EXPECT_EQ(Ask(waiter, "1"), "1");
  waiter.Tell("2");
  publisher.Kill();
  EXPECT_THAT(waiter.Hear(), AllOf(StartsWith(kGone), HasSubstr("1 were published")));
  EXPECT_THAT(Ask(waiter, "2"), StartsWith(kGone));
  EXPECT_EQ(Ask(next, "write"), "2");
  EXPECT_EQ(Ask(waiter, "2"), "2");
  EXPECT_EQ(Ask(waiter, "stream 2"), "2");
}

TEST_F(PublicationTest, AnOwnerThatDiesBeforeItPublishedEndsTheWait) {
  ForkedProgram& publisher = Publisher();
  ForkedProgram& waiter = Waiter();
  waiter.Tell("stream 1");
  publisher.Kill();
  EXPECT_THAT(waiter.Hear(), AllOf(StartsWith(kGone), HasSubstr("its owner")));
}

// Its event is never complete: the driver leaves it so for good.
TEST_F(PublicationTest, APublisherThatDiesInTheMiddleOfItsWorkEndsTheWaitForIt) {
  ForkedProgram& publisher = Publisher();
  ForkedProgram& waiter = Waiter();
  Inject("cuEventQuery", waiter, cuda::CUDA_ERROR_NOT_READY, 0);
  EXPECT_EQ(Ask(publisher, "write"), "1");
  waiter.Tell("1");
  EXPECT_TRUE(Eventually([&] { return daemon_->node().FaultsMet() > 3; }));
  publisher.Kill();
  EXPECT_THAT(waiter.Hear(), AllOf(StartsWith(kGone), HasSubstr("its work on the GPU")));
}

TEST_F(PublicationTest, AReadersDeathDisturbsNobody) {
  ForkedProgram& publisher = Publisher();
  ForkedProgram& waiter = Waiter();
  ForkedProgram& reader = Waiter(Access::kReadOnly);
  waiter.Tell("1");
  reader.Kill();
  EXPECT_EQ(Ask(publisher, "write"), "1");
  EXPECT_EQ(waiter.Hear(), "1");
}

TEST_F(PublicationTest, APublisherThatLetsGoEndsTheWait) {
  for (const char* const how : {"close", "release"}) {
    ForkedProgram& publisher = Publisher();
    ForkedProgram& waiter = Waiter();
    EXPECT_EQ(Ask(publisher, "write"), "1");
    waiter.Tell("2");
    EXPECT_THAT(Ask(publisher, how), StartsWith(how));
    EXPECT_THAT(waiter.Hear(), StartsWith(kGone)) << how;
    // What was published before is there all the same.
    EXPECT_EQ(Ask(waiter, "1"), "1");
    parties_.clear();
    EXPECT_TRUE(Eventually([&] { return IsAllFree(RawClient(daemon_->runtime_dir()).Node()); }));
  }
}

TEST_F(PublicationTest, ALongTimeOfPublishingUsesNoMoreEvents) {
  ForkedProgram& publisher = Run([](Leader& leader, const std::string& directory) {
    Gpu gpu(directory);
    Client client({.runtime_dir = directory});
    leader.Say("ready");
    std::uint64_t published = 0;
    for (int lease_number = 0; lease_number < 20; ++lease_number) {
      Lease lease = client.Allocate({.size_bytes = 1, .kind = MemoryKind::kHost, .ordered = true});
      for (int i = 0; i < 500; ++i) {
        lease.Publish(gpu.stream);
        ++published;
      }
      if (lease_number == 0) {
        leader.Say("warm");
        leader.Await();
      }
    }
    leader.Say(std::to_string(published));
    leader.Await();
  });
  EXPECT_EQ(publisher.Hear(), "warm");
  const std::size_t before = OpenDescriptors(publisher.pid());  // with the lease that is open
  publisher.Tell("on");
  EXPECT_EQ(publisher.Hear(), "10000");
  EXPECT_LE(OpenDescriptors(publisher.pid()), before);
}

TEST_F(PublicationTest, OneProcessMayWaitForItselfInAnotherClient) {
  ForkedProgram& both = Run([](Leader& leader, const std::string& directory) {
    Gpu gpu(directory);
    Client one({.runtime_dir = directory});
    Client two({.runtime_dir = directory});
    Lease mine = one.Allocate({.size_bytes = 4096, .name = "frames", .ordered = true});
    Lease opened = two.Open("frames");
    leader.Say("ready");
    leader.Await();
    mine.Publish(gpu.stream);
    Try(leader, [&] { return opened.WaitPublished(1, gpu.stream, seconds(60)); });
  });
  EXPECT_EQ(Ask(both, "go"), "1");
}

TEST_F(PublicationTest, WhatHasNoOrderSaysSo) {
  ForkedProgram& plain = Run([](Leader& leader, const std::string& directory) {
    Client client({.runtime_dir = directory, .use_cuda = false});
    Lease lease = client.Allocate({.size_bytes = 4096});
    Lease forged = client.Allocate(
        {.size_bytes = 1, .name = "forged", .labels = {{"gpulease.order", "no number"}}});
    leader.Say("ready");
    leader.Await();
    Try(leader, [&] { return lease.Publish(); });
    Try(leader, [&] { return forged.published(); });
    // The label of a lease that is another kind of thing.
    Lease target = client.Allocate({.size_bytes = 4096, .kind = MemoryKind::kHost});
    Try(leader, [&] {
      return client
          .Allocate({.size_bytes = 1, .labels = {{"gpulease.order", std::to_string(target.id())}}})
          .id();
    });
    Lease ordered = client.Allocate({.size_bytes = 4096, .ordered = true});
    Try(leader, [&] { return ordered.Publish(nullptr); });
  });
  EXPECT_THAT(Ask(plain, "go"), HasSubstr("without AllocateOptions::ordered"));
  EXPECT_THAT(plain.Hear(), HasSubstr("without AllocateOptions::ordered"));
  EXPECT_THAT(plain.Hear(), HasSubstr("names no lease that orders it"));
  EXPECT_THAT(plain.Hear(), HasSubstr("use_cuda = false"));
}

// Each call of the driver on the way fails once: the error names it, nothing was published or
// waited for, nothing stays, and the retry works.
TEST_F(PublicationTest, AnyStepMayFailAndTheRetryWorks) {
  ForkedProgram& publisher = Publisher();
  ForkedProgram& waiter = Waiter();
  int published = 0;
  const std::size_t before = OpenDescriptors(publisher.pid());
  for (const char* const step : {"cuStreamGetCtx", "cuEventCreate", "cuIpcGetEventHandle"}) {
    Inject(step, publisher, cuda::CUDA_ERROR_UNKNOWN, 1);
    EXPECT_THAT(Ask(publisher, "stream"), AllOf(StartsWith("error 13 15: "), HasSubstr(step)));
    EXPECT_EQ(OpenDescriptors(publisher.pid()), before) << step;
    EXPECT_THAT(Ask(waiter, "brief " + std::to_string(published + 1)), StartsWith(kTimedOut));
  }
  Inject("cuEventRecord", publisher, cuda::CUDA_ERROR_INVALID_HANDLE, 3);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Ask(publisher, "stream"), HasSubstr("cuEventRecord"));
  const std::size_t with_event = OpenDescriptors(publisher.pid());
  EXPECT_EQ(Ask(publisher, "stream"), std::to_string(++published));
  EXPECT_EQ(OpenDescriptors(publisher.pid()), with_event) << "the event of those that failed";
  Inject("cuStreamWaitEvent", publisher, cuda::CUDA_ERROR_UNKNOWN, 1);
  EXPECT_THAT(Ask(publisher, "stream"), HasSubstr("cuStreamWaitEvent"));
  EXPECT_EQ(Ask(publisher, "stream"), std::to_string(++published));
  Inject("cuEventRecord", publisher, cuda::CUDA_ERROR_UNKNOWN, 1);
  EXPECT_THAT(Ask(publisher, "stream"), HasSubstr("cuEventRecord"));
  // A context that was made anew: the event of the former one is of no use, another is made.
  Inject("cuEventRecord", publisher, cuda::CUDA_ERROR_INVALID_HANDLE, 1);
  EXPECT_EQ(Ask(publisher, "stream"), std::to_string(++published));
  for (const char* const step : {"cuIpcOpenEventHandle", "cuEventQuery"}) {
    Inject(step, waiter, cuda::CUDA_ERROR_UNKNOWN, 1);
    EXPECT_THAT(Ask(waiter, std::to_string(published)),
                AllOf(StartsWith("error 13 15: "), HasSubstr(step)));
  }
  Inject("cuStreamGetCtx", waiter, cuda::CUDA_ERROR_UNKNOWN, 1);
  EXPECT_THAT(Ask(waiter, "stream " + std::to_string(published)), HasSubstr("cuStreamGetCtx"));
  Inject("cuEventQuery", waiter, cuda::CUDA_ERROR_NOT_READY, 1);
  Inject("cuStreamWaitEvent", waiter, cuda::CUDA_ERROR_UNKNOWN, 1);
  EXPECT_THAT(Ask(waiter, "stream " + std::to_string(published)), HasSubstr("cuStreamWaitEvent"));
  EXPECT_EQ(Ask(waiter, "stream " + std::to_string(published)), std::to_string(published));
  EXPECT_EQ(Ask(waiter, std::to_string(published)), std::to_string(published));
}

// Descriptors that this process may still open.
void Leave(rlim_t count) {
  const UniqueFd lowest(open("/dev/null", O_RDONLY | O_CLOEXEC));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(lowest.get()) + count;
  GPULEASE_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "a limit of open files");
}

void LeaveAll() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The lease and what orders it come one after the other: where only one of them does, none stays.
TEST_F(PublicationTest, ALeaseThatComesWithoutItsOrderGoesBack) {
  ForkedProgram& party = Run([](Leader& leader, const std::string& directory) {
    Client client({.runtime_dir = directory, .use_cuda = false});
    const AllocateOptions options{
        .size_bytes = 4096, .kind = MemoryKind::kHost, .name = "frames", .ordered = true};
    leader.Say("ready");
    for (const rlim_t left : {0, 1}) {
      leader.Await();
      Leave(left);
      Try(leader, [&] { return client.Allocate(options).id(); });
      LeaveAll();
    }
    leader.Await();
    Lease lease = client.Allocate(options);
    Client other({.runtime_dir = directory, .use_cuda = false});
    for (const rlim_t left : {0, 1}) {
      Leave(left);
      Try(leader, [&] { return other.Open("frames").id(); });
      LeaveAll();
      leader.Await();
    }
    Lease opened = other.Open("frames");
    lease.Publish();
    Try(leader, [&] { return opened.WaitPublished(1, seconds(60)); });
    leader.Await();
  });
  RawClient observer(daemon_->runtime_dir());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Ask(party, "allocate"), StartsWith("error 8 5: "));
    EXPECT_TRUE(Eventually([&] { return IsAllFree(observer.Node()); }));
  }
  party.Tell("go on");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(party.Hear(), StartsWith("error 8 5: "));
    const auto lease = observer.GetLease("frames");
    ASSERT_TRUE(Worked(lease));
    EXPECT_EQ(lease.message.lease().holders_size(), 1);
    party.Tell("go on");
  }
  EXPECT_EQ(party.Hear(), "1");
}

class PublicationRestartTest : public PublicationTest {
 protected:
  PublicationRestartTest() : PublicationTest(true) {}
};

TEST_F(PublicationRestartTest, ItGoesOnOverARestartAndADeathMeanwhileIsNoticed) {
  ForkedProgram& publisher = Publisher();
  ForkedProgram& waiter = Waiter();
  EXPECT_EQ(Ask(publisher, "write"), "1");
  waiter.Tell("2");
  daemon_->Kill();
  EXPECT_EQ(Ask(publisher, "publish"), "2");
  EXPECT_EQ(waiter.Hear(), "2");
  waiter.Tell("3");
  publisher.Kill();
  daemon_->Start();
  EXPECT_THAT(waiter.Hear(), StartsWith(kGone));
}

}  // namespace
}  // namespace gpulease::e2e
