// SPDX-License-Identifier: Apache-2.0
//
// Whose end is told in a lease's memory, and whose is not.
#include "ledger_fixture.h"

namespace gpulease::ledger {
namespace {

using std::chrono::seconds;

AllocationSpec Noticed(std::uint32_t mode = 0666) {
  AllocationSpec spec = HostSpec(4096);
  spec.name = "page";
  spec.mode = mode;
  spec.death_notice = true;
  return spec;
}

// How often it was to be told of this lease.
int Notices(const World& world, LeaseId lease) {
  int count = 0;
  for (const Effect& effect : world.Seen(Effect::Kind::kDeathNotice))
    count += effect.lease == lease ? 1 : 0;
  return count;
}

TEST(LedgerDeathNoticeTest, TellsOfEveryHolderThatDiedAndOfNoOther) {
  World world;
  const SessionId owner = world.Open(1000), first = world.Open(1001), second = world.Open(1002);
  const LeaseId lease = world.Lend(owner, Noticed());
  const LeaseId other = world.Lend(owner, HostSpec(4096));
  world.Hold(first, lease, Access::kReadOnly);
  world.Hold(second, lease);
  const SessionId stranger = world.Open(1003);
  world.End(stranger);
  EXPECT_EQ(Notices(world, lease), 0);
  world.End(first);
  EXPECT_EQ(Notices(world, lease), 1);
  world.End(owner);
  EXPECT_EQ(Notices(world, lease), 2);
  EXPECT_EQ(world.StateOf(lease), State::kReleased);
  EXPECT_EQ(Notices(world, other), 0);
  // Before its memory goes with the last of them.
  world.End(second);
  EXPECT_EQ(Notices(world, lease), 3);
  ASSERT_TRUE(world.Destroying(lease));
  const auto place = [&](Effect::Kind kind) {
    std::size_t last = 0;
    for (std::size_t i = 0; i < world.log.size(); ++i) {
      if (world.log[i].kind == kind && world.log[i].lease == lease) last = i;
    }
    return last;
  };
  EXPECT_LT(place(Effect::Kind::kDeathNotice), place(Effect::Kind::kDestroy));
}

TEST(LedgerDeathNoticeTest, DoesNotTellOfWhoLetGo) {
  World world;
  const SessionId owner = world.Open(1000), holder = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Noticed());
  world.Hold(holder, lease);
  EXPECT_TRUE(world.Close(holder, lease).ok());
  world.End(holder);
  EXPECT_TRUE(world.Release(owner, lease).ok());
  world.End(owner);
  EXPECT_EQ(Notices(world, lease), 0);
}

TEST(LedgerDeathNoticeTest, TellsOfRightsThatEndedWhileTheProcessLives) {
  World world;
  const SessionId owner = world.Open(1000), holder = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Noticed());
  world.Hold(holder, lease);
  world.ledger.LoseConnection(holder, world.now, world.log);
  EXPECT_EQ(Notices(world, lease), 0) << "it may come back";
  world.Pass(seconds(30));
  EXPECT_EQ(Notices(world, lease), 1);
  // From here on nobody hears of the owner's death.
  EXPECT_TRUE(world.Revoke(lease, true).ok());
  EXPECT_EQ(Notices(world, lease), 2);
}

TEST(LedgerDeathNoticeTest, TellsOfWhoDiedWhileThereWasNoLedger) {
  World world;
  const SessionSpec lives = world.Client(1000);
  const SessionId owner = world.Open(lives), holder = world.Open(1001);
  const LeaseId lease = world.Lend(owner, Noticed());
  world.Hold(holder, lease);
  for (const bool aside : {false, true}) {
    World next;
    next.now = world.now;
    if (!aside) ASSERT_TRUE(next.ledger.RestoreSession(owner, lives, next.now).ok());
    RestoredLease kept = *world.ledger.Keepable(lease);
    ASSERT_TRUE((aside ? next.ledger.SetAside(kept, next.now, next.log)
                       : next.ledger.RestoreLease(kept, next.now, next.log))
                    .ok());
    EXPECT_EQ(Notices(next, lease), 1) << aside;
    EXPECT_TRUE(next.ledger.FindLease(lease)->death_notice);
  }
}

TEST(LedgerDeathNoticeTest, IsForHostMemoryInSmallPages) {
  World world;
  const SessionId owner = world.Open();
  AllocationSpec device = Spec(kGiB);
  device.death_notice = true;
  ExpectRefused(world.Ask(owner, {device}), Code::kInvalidArgument, Reason::kBadField);
  AllocationSpec huge = Noticed();
  huge.page_size = PageSize::kHuge;
  ExpectRefused(world.Ask(owner, {huge}), Code::kInvalidArgument, Reason::kBadField);
  const LeaseId lease = world.Ask(owner, {Noticed()}).value().leases[0];
  EXPECT_EQ(world.ledger.FindLease(lease)->page_size, PageSize::kSmall);
}

}  // namespace
}  // namespace gpulease::ledger
