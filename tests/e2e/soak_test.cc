// SPDX-License-Identifier: Apache-2.0
//
// Clients are killed at random instants, again and again. GPULEASE_KILLS says how often,
// GPULEASE_SEED with which dice.
#include <gtest/gtest.h>
#include <time.h>

#include <cstdlib>
#include <list>
#include <random>

#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"

namespace gpulease::e2e {
namespace {

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// One client and the commands that it goes through, without anybody listening to the answers.
struct Victim {
  explicit Victim(const std::string& runtime_dir) : process(runtime_dir) {}
  ClientProcess process;
  std::size_t sent = 0;
};

TEST(SoakTest, ClientsKilledAtRandomInstantsLeaveNothingBehind) {
  const std::uint64_t kills = FromEnvironment("GPULEASE_KILLS", 200);
  const std::uint64_t seed = FromEnvironment("GPULEASE_SEED", 1);
  RecordProperty("seed", static_cast<int>(seed));
  std::mt19937_64 random(seed);
  DaemonProcess daemon({.simulate = "2x1GiB", .config = "largest_chunk: \"16MiB\""});
  RawClient observer(daemon.runtime_dir());
  // Another's lease, for the victims to open.
  RawClient owner(daemon.runtime_dir());
  owner.Connect();
  const auto shared = owner.MustAllocate(DeviceSpec(64 * kMiB, "shared"));
  const std::string shared_id = std::to_string(shared.first.lease_id());

  const auto command = [&]() -> std::string {
    const std::string size = std::to_string((1 + random() % 300) * kMiB);
    switch (random() % 6) {
      case 0:
        return "device " + size;
      case 1:
        return "device " + size + " wait=600000";
      case 2:
        return "device " + size + " untaken";
      case 3:
        return "host " + std::to_string(1 + random() % 100'000);
      case 4:
        return "open shared rw";
      default:
        return "close " + shared_id;
    }
  };
  std::size_t descriptors = 0;
  std::list<Victim> victims;
  std::uint64_t killed = 0;
  while (killed < kills) {
    if (victims.size() < 6) {
      Victim& victim = victims.emplace_back(daemon.runtime_dir());
      victim.process.Send("dial");
      victim.process.Send("hello");
    }
    for (Victim& victim : victims) {
      if (victim.sent < 12) {
        victim.process.Send(command());
        ++victim.sent;
      }
    }
    // Some instant later, not a condition: any is right.
    const timespec pause = {.tv_sec = 0, .tv_nsec = static_cast<long>(random() % 5'000'000)};
    nanosleep(&pause, nullptr);
    auto chosen = victims.begin();
    std::advance(chosen, static_cast<long>(random() % victims.size()));
    chosen->process.Kill();
    victims.erase(chosen);
    ++killed;
    if (killed % 50 == 0) {
      const v1::GetNodeResponse node = observer.Node();
      ASSERT_TRUE(AddsUp(node)) << "seed " << seed << ", after " << killed << " kills";
      // Now and then all of them: what is left must be what was there.
      victims.clear();
      ASSERT_TRUE(Eventually([&] {
        return observer.Node().session_count() == 1 && observer.Node().lease_count() == 1;
      })) << "seed "
          << seed << ", after " << killed << " kills: " << observer.Node().ShortDebugString();
      if (descriptors == 0) descriptors = daemon.settled_descriptors();
      ASSERT_TRUE(Eventually([&] { return daemon.open_descriptors() <= descriptors; }))
          << "seed " << seed << ", after " << killed << " kills";
    }
  }
  victims.clear();
  ASSERT_TRUE(daemon.running());
  ASSERT_TRUE(Worked(owner.Release(shared.first.lease_id())));
  owner.HangUp();
  EXPECT_TRUE(Eventually([&] {
    return daemon.node().Used(0) + daemon.node().Used(1) == shared.first.size_bytes();
  })) << "only this test still has a descriptor";
  EXPECT_TRUE(AddsUp(observer.Node()));
  EXPECT_EQ(daemon.Stop(), 0);
}

}  // namespace
}  // namespace gpulease::e2e
