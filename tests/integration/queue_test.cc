// SPDX-License-Identifier: Apache-2.0
//
// Requests that wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <list>

#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

constexpr std::uint64_t kLong = 600'000;

class QueueTest : public ::testing::Test {
 protected:
  QueueTest() : daemon_({.simulate = "1x1GiB"}), holder_(daemon_.runtime_dir()) {
    holder_.Connect();
    std::tie(held_, chunks_) = holder_.MustAllocate(DeviceSpec(kGiB));
  }
  RawClient& NewClient() {
    RawClient& client = clients_.emplace_back(daemon_.runtime_dir());
    client.Connect();
    return client;
  }
  // The id of a request that must be queued.
  std::uint64_t Queue(RawClient& client, Bytes size, std::uint64_t wait_ms, unsigned place) {
    const auto reply = client.Allocate({DeviceSpec(size)}, wait_ms);
    EXPECT_TRUE(Worked(reply));
    if (!reply.ok()) return 0;
    EXPECT_EQ(reply.message.leases(0).state(), v1::LEASE_STATE_QUEUED);
    EXPECT_EQ(reply.message.queue_position(), place);
    return reply.message.leases(0).lease_id();
  }
  void LetGo() {
    ASSERT_TRUE(Worked(holder_.Release(held_.lease_id())));
    chunks_.clear();
  }

  DaemonProcess daemon_;
  RawClient holder_;
  v1::Lease held_;
  std::vector<UniqueFd> chunks_;
  std::list<RawClient> clients_;
};

TEST_F(QueueTest, AWaiterLearnsItsPlaceAndWhoIsInTheWay) {
  const std::uint64_t first = Queue(NewClient(), 512 * kMiB, kLong, 1);
  const std::uint64_t second = Queue(NewClient(), 2 * kMiB, kLong, 2);
  const auto seen = holder_.GetLease(second);
  ASSERT_TRUE(Worked(seen));
  EXPECT_EQ(seen.message.lease().queue_position(), 2u);
  const auto head = holder_.GetLease(first);
  ASSERT_GE(head.message.lease().blockers_size(), 1);
  EXPECT_EQ(head.message.lease().blockers(0).lease_id(), held_.lease_id());
  EXPECT_EQ(head.message.lease().blockers(0).pid(), getpid());
  EXPECT_EQ(holder_.Node().gpus(0).memory().queue_length(), 2u);
  EXPECT_TRUE(AddsUp(holder_.Node()));
}

TEST_F(QueueTest, AnAwaitedLeaseComesWhenTheMemoryIsReleased) {
  RawClient& waiter = NewClient();
  const std::uint64_t id = Queue(waiter, 512 * kMiB, kLong, 1);
  auto awaited = std::async(std::launch::async, [&] { return waiter.Await(id); });
  LetGo();
  const auto reply = awaited.get();
  ASSERT_TRUE(Worked(reply));
  EXPECT_EQ(reply.message.leases(0).lease_id(), id);
  EXPECT_EQ(reply.message.leases(0).state(), v1::LEASE_STATE_OFFERED);
  EXPECT_FALSE(reply.instance.empty());
  const auto chunks = waiter.Chunks(waiter.last_tag(), id);
  ASSERT_TRUE(chunks.ok()) << chunks.error().message;
  EXPECT_TRUE(AddsUp(holder_.Node()));
}

TEST_F(QueueTest, AnAwaitAfterTheGrantIsAnsweredAtOnce) {
  RawClient& waiter = NewClient();
  const std::uint64_t id = Queue(waiter, 512 * kMiB, kLong, 1);
  LetGo();
  EXPECT_TRUE(Eventually([&] {
    const auto seen = waiter.GetLease(id);
    return seen.ok() && seen.message.lease().state() == v1::LEASE_STATE_OFFERED;
  }));
  ASSERT_TRUE(Worked(waiter.Await(id)));
  EXPECT_TRUE(waiter.Chunks(waiter.last_tag(), id).ok());
}

TEST_F(QueueTest, AReleaseGivesThePlaceUpAndEndsTheAwait) {
  RawClient& waiter = NewClient();
  const std::uint64_t id = Queue(waiter, 512 * kMiB, kLong, 1);
  auto awaited = std::async(std::launch::async, [&] { return waiter.Await(id); });
  ASSERT_TRUE(Worked(waiter.Release(id)));
  const auto reply = awaited.get();
  EXPECT_FALSE(reply.ok());
  EXPECT_TRUE(reply.status.error_code() == grpc::StatusCode::CANCELLED ||
              reply.status.error_code() == grpc::StatusCode::NOT_FOUND)
      << Describe(reply.status, reply.detail);
  EXPECT_EQ(holder_.Node().gpus(0).memory().queue_length(), 0u);
  EXPECT_FALSE(waiter.GetLease(id).ok());
}

TEST_F(QueueTest, AWaitThatIsOverEndsInDeadlineExceeded) {
  RawClient& waiter = NewClient();
  const std::uint64_t id = Queue(waiter, 512 * kMiB, 300, 1);
  const auto reply = waiter.Await(id);
  EXPECT_TRUE(Refused(reply, grpc::StatusCode::DEADLINE_EXCEEDED, v1::REASON_WAIT_OVER));
  EXPECT_EQ(reply.detail.requested_bytes(), 512 * kMiB);
  // Whose answer was lost asks again.
  EXPECT_TRUE(Refused(waiter.Await(id), grpc::StatusCode::DEADLINE_EXCEEDED, v1::REASON_WAIT_OVER));
  EXPECT_EQ(holder_.Node().gpus(0).memory().queue_length(), 0u);
}

TEST_F(QueueTest, TheCallsOwnDeadlineDoesNotEndTheWait) {
  RawClient& waiter = NewClient();
  const std::uint64_t id = Queue(waiter, 512 * kMiB, kLong, 1);
  const auto given_up = waiter.Await(id, std::chrono::milliseconds(50));
  EXPECT_EQ(given_up.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(waiter.GetLease(id).message.lease().queue_position(), 1u);
  LetGo();
  ASSERT_TRUE(Worked(waiter.Await(id)));
  EXPECT_TRUE(waiter.Chunks(waiter.last_tag(), id).ok());
}

TEST_F(QueueTest, ASmallRequestDoesNotOvertakeALargeOne) {
  Queue(NewClient(), kGiB, kLong, 1);
  // Half of the GPU comes back: the first in the queue needs all of it, and reserves it.
  RawClient& small = NewClient();
  EXPECT_TRUE(Refused(small.Allocate({DeviceSpec(2 * kMiB)}), grpc::StatusCode::UNAVAILABLE,
                      v1::REASON_MEMORY_SHORT));
  const std::uint64_t second = Queue(small, 2 * kMiB, kLong, 2);
  EXPECT_EQ(small.GetLease(second).message.lease().queue_position(), 2u);
}

TEST_F(QueueTest, ARetryOfAQueuedRequestKeepsItsPlace) {
  RawClient& waiter = NewClient();
  const auto first = waiter.Allocate({DeviceSpec(512 * kMiB)}, kLong, "r1");
  Queue(NewClient(), 2 * kMiB, kLong, 2);
  const auto again = waiter.Allocate({DeviceSpec(512 * kMiB)}, kLong, "r1");
  ASSERT_TRUE(Worked(first));
  ASSERT_TRUE(Worked(again));
  EXPECT_EQ(again.message.leases(0).lease_id(), first.message.leases(0).lease_id());
  EXPECT_EQ(again.message.leases(0).state(), v1::LEASE_STATE_QUEUED);
  EXPECT_EQ(again.message.queue_position(), 1u);
}

TEST_F(QueueTest, ASecondAwaitOfALeaseReplacesTheFirst) {
  RawClient& waiter = NewClient();
  const std::uint64_t id = Queue(waiter, 512 * kMiB, kLong, 1);
  v1::AwaitRequest request;
  request.set_session_id(waiter.session_id());
  request.set_lease_id(id);
  request.set_push_tag(1000);
  const auto await = [&] { return waiter.Call(&v1::LeaseService::StubInterface::Await, request); };
  auto first = std::async(std::launch::async, await);
  auto second = std::async(std::launch::async, await);
  // Whichever came later is the one that waits on.
  EXPECT_TRUE(Eventually([&] {
    return first.wait_for(std::chrono::seconds(0)) == std::future_status::ready ||
           second.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }));
  LetGo();
  const auto one = first.get(), two = second.get();
  EXPECT_NE(one.ok(), two.ok()) << Describe(one.status, one.detail) << "; "
                                << Describe(two.status, two.detail);
  const auto& ended = one.ok() ? two : one;
  EXPECT_EQ(ended.status.error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(QueueTest, HundredsOfWaitersHoldNoThreadAndStopNobody) {
  RawClient& waiter = NewClient();
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 400; ++i) {
    const auto reply = waiter.Allocate({DeviceSpec(2 * kMiB)}, kLong);
    ASSERT_TRUE(Worked(reply));
    ids.push_back(reply.message.leases(0).lease_id());
  }
  grpc::CompletionQueue calls;
  struct Pending {
    grpc::ClientContext context;
    v1::AllocateResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReaderInterface<v1::AllocateResponse>> reader;
  };
  std::list<Pending> pending;
  for (const std::uint64_t id : ids) {
    v1::AwaitRequest request;
    request.set_session_id(waiter.session_id());
    request.set_lease_id(id);
    request.set_push_tag(id);
    Pending& call = pending.emplace_back();
    call.reader = waiter.leases().AsyncAwait(&call.context, request, &calls);
    call.reader->Finish(&call.response, &call.status, &call);
  }
  // The daemon answers others meanwhile, and needs no thread for each.
  EXPECT_EQ(holder_.Node().gpus(0).memory().queue_length(), 400u);
  std::size_t threads = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(daemon_.pid()) + "/task")) {
    ++threads;
  }
  EXPECT_LT(threads, 150u);
  LetGo();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    void* tag = nullptr;
    bool ok = false;
    ASSERT_EQ(calls.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kPatience),
              grpc::CompletionQueue::GOT_EVENT);
    Pending& call = *static_cast<Pending*>(tag);
    ASSERT_TRUE(call.status.ok()) << call.status.error_message();
    const std::uint64_t id = call.response.leases(0).lease_id();
    ASSERT_TRUE(waiter.Chunks(id, id).ok());
  }
  calls.Shutdown();
  EXPECT_TRUE(AddsUp(holder_.Node()));
}

TEST(QueueLimitTest, WaitingRequestsOfAUserAreBounded) {
  DaemonProcess daemon({.simulate = "1x1GiB", .config = "waits_per_user: 3"});
  RawClient client(daemon.runtime_dir());
  client.Connect();
  const auto held = client.MustAllocate(DeviceSpec(kGiB));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Worked(client.Allocate({DeviceSpec(1)}, kLong)));
  EXPECT_TRUE(Refused(client.Allocate({DeviceSpec(1)}, kLong), grpc::StatusCode::RESOURCE_EXHAUSTED,
                      v1::REASON_SESSION_LIMIT));
}

TEST(TenantTest, ATenantsLimitIsRefusedWithItsNumbersAndGivenBackOnRelease) {
  DaemonProcess daemon({.simulate = "1x1GiB",
                        .config = "tenants { name: \"small\" uid: " + std::to_string(geteuid()) +
                                  " device_limit: \"64MiB\" host_limit: \"1MiB\" }"});
  RawClient client(daemon.runtime_dir());
  client.Connect();
  const auto lease = client.MustAllocate(DeviceSpec(62 * kMiB + 1)).first;
  EXPECT_EQ(lease.tenant(), "small");
  const auto reply = client.Allocate({DeviceSpec(512)});
  ASSERT_TRUE(Refused(reply, grpc::StatusCode::RESOURCE_EXHAUSTED, v1::REASON_TENANT_LIMIT));
  EXPECT_EQ(reply.detail.limit_bytes(), 64 * kMiB);
  EXPECT_TRUE(Refused(client.Allocate({DeviceSpec(65 * kMiB)}), grpc::StatusCode::INVALID_ARGUMENT,
                      v1::REASON_TOO_LARGE));
  EXPECT_TRUE(Refused(client.Allocate({HostSpec(2 * kMiB)}), grpc::StatusCode::INVALID_ARGUMENT,
                      v1::REASON_TOO_LARGE));
  EXPECT_TRUE(Worked(client.Allocate({HostSpec(kMiB)}))) << "host memory has a limit of its own";
  ASSERT_TRUE(Worked(client.Release(lease.lease_id())));
  EXPECT_TRUE(Eventually([&] { return client.Allocate({DeviceSpec(64 * kMiB)}).ok(); }));
}

}  // namespace
}  // namespace gpulease::e2e
