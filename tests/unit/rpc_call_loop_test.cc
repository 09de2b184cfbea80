// SPDX-License-Identifier: Apache-2.0
//
// CallLoop's promise: no handler waits for another's to end. Events come from gRPC's alarms.
#include <grpcpp/alarm.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <thread>

#include "daemon/rpc/call_loop.h"

namespace gpulease::rpc {
namespace {

using namespace std::chrono_literals;

class CallLoopTest : public testing::Test {
 protected:
  // Each test's last step: what it posted is handled when this returns.
  void End() {
    queue_.Shutdown();
    loop_.Join();
  }

  // An event whose handler does that.
  void Post(std::function<void()> handler) {
    Event& event = events_.emplace_back();
    event.handler = std::move(handler);
    event.alarm.Set(&queue_, std::chrono::system_clock::now(), &event);
  }

  grpc::CompletionQueue queue_;
  CallLoop loop_{queue_};

 private:
  struct Event final : Completion {
    void Complete(bool) override { handler(); }
    std::function<void()> handler;
    grpc::Alarm alarm;
  };
  std::deque<Event> events_;
};

TEST_F(CallLoopTest, ServesWhileAnotherHandlerWaits) {
  loop_.Start();
  std::promise<void> end;
  std::promise<bool> ended;
  Post([&, wait = end.get_future().share()] {
    ended.set_value(wait.wait_for(10s) == std::future_status::ready);
  });
  Post([&] { end.set_value(); });
  EXPECT_TRUE(ended.get_future().get()) << "the second event was not handled meanwhile";
  End();
}

TEST_F(CallLoopTest, ServesWhileManyHandlersWait) {
  loop_.Start();
  constexpr int kWaiting = 50;
  std::promise<void> end;
  const std::shared_future<void> wait = end.get_future().share();
  std::atomic<int> waiting = 0;
  std::atomic<int> in_vain = 0;
  std::promise<void> all;
  for (int i = 0; i < kWaiting; ++i) {
    Post([&] {
      if (++waiting == kWaiting) all.set_value();
      if (wait.wait_for(20s) != std::future_status::ready) ++in_vain;
    });
  }
  EXPECT_EQ(all.get_future().wait_for(15s), std::future_status::ready)
      << waiting << " handlers at a time";
  end.set_value();
  End();
  EXPECT_EQ(in_vain, 0);
}

TEST_F(CallLoopTest, EveryEventIsHandledOnce) {
  constexpr int kEvents = 2000;
  std::atomic<int> handled = 0;
  std::promise<void> all;
  for (int i = 0; i < kEvents; ++i) {
    Post([&, i] {
      // Some take longer than the one that reads may.
      if (i % 200 == 0) std::this_thread::sleep_for(2ms);
      if (++handled == kEvents) all.set_value();
    });
  }
  loop_.Start();
  EXPECT_EQ(all.get_future().wait_for(20s), std::future_status::ready);
  End();
  EXPECT_EQ(handled, kEvents);
}

}  // namespace
}  // namespace gpulease::rpc
