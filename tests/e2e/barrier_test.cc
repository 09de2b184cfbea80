// SPDX-License-Identifier: Apache-2.0
//
// Barriers between real processes over the real daemon: what they order, and what ends them.
#include <gmock/gmock.h>
#include <gpulease/barrier.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <new>
#include <vector>

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

constexpr char kBroken[] = "error 10 40: ";   // kAborted, kPeerGone
constexpr char kTimedOut[] = "error 4 13: ";  // kDeadlineExceeded, kWaitOver
constexpr char kWrong[] = "error 9 ";         // kFailedPrecondition

::gpulease::ClientOptions At(const std::string& directory) {
  return {.runtime_dir = directory, .use_cuda = false};
}

// Joins, says "joined", then takes part in a round each time that it is told to: says "first" or
// "last" of a round that ended.
void TakePart(ForkedProgram::Leader& leader, const std::string& directory, BarrierOptions options,
              milliseconds timeout = seconds(60)) {
  Client client(At(directory));
  for (;;) {
    Barrier barrier(client, options);
    leader.Say("joined");
    try {
      for (;;) {
        const std::string told = leader.Await();
        if (told == "leave") {
          barrier.Leave();
          leader.Say("left");
          return;
        }
        leader.Say(barrier.Wait(timeout) ? "last" : "ended");
      }
    } catch (const Exception& error) {
      leader.Say("error " + std::to_string(static_cast<int>(error.code())) + " " +
                 std::to_string(static_cast<int>(error.reason())) + ": " + error.what());
    }
    if (leader.Await() != "again") return;
  }
}

class BarrierTest : public ::testing::Test {
 protected:
  explicit BarrierTest(bool with_keeper = false) {
    if (with_keeper) keeper_ = std::make_unique<KeeperProcess>(folder_.path() + "/run");
    daemon_ = std::make_unique<DaemonProcess>(
        DaemonOptions{.simulate = "1x1GiB", .runtime_dir = folder_.path() + "/run"});
    observer_ = std::make_unique<RawClient>(daemon_->runtime_dir());
    descriptors_ = daemon_->settled_descriptors();
  }
  // Nothing of any barrier stays.
  void ExpectNoTrace() {
    parties_.clear();
    EXPECT_TRUE(Eventually([&] { return IsAllFree(RawClient(daemon_->runtime_dir()).Node()); }));
    EXPECT_TRUE(Eventually([&] { return daemon_->open_descriptors() <= descriptors_; }))
        << daemon_->open_descriptors() << ", before " << descriptors_;
  }
  ForkedProgram& Add(BarrierOptions options, milliseconds timeout = seconds(60)) {
    const std::string directory = daemon_->runtime_dir();
    parties_.push_back(std::make_unique<ForkedProgram>(
        [=](ForkedProgram::Leader& leader) { TakePart(leader, directory, options, timeout); }));
    return *parties_.back();
  }
  void Join(unsigned count, milliseconds timeout = seconds(60)) {
    for (unsigned i = 0; i < count; ++i)
      ASSERT_EQ(Add({.name = "step", .participants = count}, timeout).Hear(), "joined");
  }
  // All of them take part in one round.
  void ExpectARound() {
    for (const auto& party : parties_) party->Tell("go");
    int last = 0;
    for (const auto& party : parties_) {
      const std::string said = party->Hear();
      last += said == "last" ? 1 : 0;
      EXPECT_TRUE(said == "last" || said == "ended") << said;
    }
    EXPECT_EQ(last, 1);
  }
  // How many sleep in a round: it shows in the kernel's view of them.
  static bool Sleeps(const ForkedProgram& party) {
    const std::string path = "/proc/" + std::to_string(party.pid()) + "/wchan";
    std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "r"), fclose);
    char text[64] = {};
    if (!file || fread(text, 1, sizeof text - 1, file.get()) == 0) return false;
    return std::string(text).find("futex") != std::string::npos;
  }

  TemporaryDirectory folder_;
  std::unique_ptr<KeeperProcess> keeper_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> observer_;
  std::size_t descriptors_ = 0;
  std::vector<std::unique_ptr<ForkedProgram>> parties_;
};

TEST_F(BarrierTest, NobodyIsInTheNextRoundBeforeAllWereInThisOne) {
  constexpr unsigned kParties = 4;
  constexpr unsigned kRounds = 2000;
  void* const shared =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const work = new (shared) std::atomic<unsigned>[kParties];
  auto* const lasts = new (static_cast<std::byte*>(shared) + 2048) std::atomic<unsigned>(0);
  const std::string directory = daemon_->runtime_dir();
  for (unsigned party = 0; party < kParties; ++party) {
    parties_.push_back(std::make_unique<ForkedProgram>([=](ForkedProgram::Leader& leader) {
      Client client(At(directory));
      Barrier barrier(client, {.name = "step", .participants = kParties});
      for (unsigned round = 1; round <= kRounds; ++round) {
        work[party].store(round, std::memory_order_relaxed);
        if (barrier.Wait(seconds(60))) lasts->fetch_add(1);
        for (unsigned other = 0; other < kParties; ++other) {
          const unsigned seen = work[other].load(std::memory_order_relaxed);
          if (seen < round || seen > round + 1) {
            leader.Say("round " + std::to_string(round) + " ended in round " +
                       std::to_string(seen) + " of another");
            return;
          }
        }
      }
      leader.Say("done");
    }));
  }
  for (const auto& party : parties_) EXPECT_EQ(party->Hear(), "done");
  EXPECT_EQ(lasts->load(), kRounds);
  munmap(shared, 4096);
  ExpectNoTrace();
}

TEST_F(BarrierTest, AKilledParticipantBreaksItForThoseWhoWaitAndTheyMakeItAnew) {
  Join(4);
  ExpectARound();
  for (int i = 1; i < 4; ++i) parties_[i]->Tell("go");
  EXPECT_TRUE(Eventually([&] { return Sleeps(*parties_[3]); }));
  const pid_t killed = parties_[0]->pid();  // it made the barrier
  parties_[0]->Kill();
  for (int i = 1; i < 4; ++i) {
    EXPECT_THAT(parties_[i]->Hear(),
                AllOf(StartsWith(kBroken),
                      HasSubstr("participant 0 (pid " + std::to_string(killed) + ")")));
  }
  for (int i = 1; i < 4; ++i) parties_[i]->Tell("again");
  for (int i = 1; i < 4; ++i) EXPECT_EQ(parties_[i]->Hear(), "joined");
  parties_.erase(parties_.begin());
  EXPECT_EQ(Add({.name = "step", .participants = 4}).Hear(), "joined");
  ExpectARound();
  // Another than its maker dies, before anybody waits.
  parties_[2]->Kill();
  parties_.erase(parties_.begin() + 2);
  for (const auto& party : parties_) party->Tell("go");
  for (const auto& party : parties_) EXPECT_THAT(party->Hear(), StartsWith(kBroken));
  ExpectNoTrace();
}

TEST_F(BarrierTest, WhoseWaitIsOverBreaksItForAll) {
  ForkedProgram& patient = Add({.name = "step", .participants = 3});
  EXPECT_EQ(patient.Hear(), "joined");
  ForkedProgram& hasty = Add({.name = "step", .participants = 3}, milliseconds(50));
  EXPECT_EQ(hasty.Hear(), "joined");
  patient.Tell("go");
  EXPECT_TRUE(Eventually([&] { return Sleeps(patient); }));
  hasty.Tell("go");
  EXPECT_THAT(hasty.Hear(), AllOf(StartsWith(kTimedOut), HasSubstr("2 of 3 came")));
  EXPECT_THAT(patient.Hear(),
              AllOf(StartsWith(kBroken), HasSubstr("the wait of participant 1 (pid " +
                                                   std::to_string(hasty.pid()) + ") was over")));
  ExpectNoTrace();
}

TEST_F(BarrierTest, WhoLeavesHasTakenPartInWhatEndedAndBreaksWhatComes) {
  Join(3);
  ExpectARound();
  parties_[1]->Tell("leave");
  EXPECT_EQ(parties_[1]->Hear(), "left");
  for (const int i : {0, 2}) parties_[i]->Tell("go");
  for (const int i : {0, 2}) {
    EXPECT_THAT(parties_[i]->Hear(),
                AllOf(StartsWith(kBroken), HasSubstr("participant 1 (pid"), HasSubstr(") left")));
  }
  ExpectNoTrace();
}

TEST_F(BarrierTest, TheAdministratorSeesWhatItIsAndWhoTakesPart) {
  Join(2);
  const Ended shown = RunProgram(
      {BuiltProgram("gpuleasectl"), "--runtime-dir", daemon_->runtime_dir(), "show", "step"});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_THAT(shown.output, AllOf(HasSubstr("gpulease.barrier=2"), HasSubstr("death notice")));
  for (const auto& party : parties_)
    EXPECT_THAT(shown.output, HasSubstr(std::to_string(party->pid())));
}

TEST_F(BarrierTest, ABrokenOneIsInNobodysWayWhileItsMakerHasNotLooked) {
  Join(2);
  parties_[1]->Kill();
  // Its maker does not look; another comes, and goes in vain.
  ForkedProgram& late = Add({.name = "step", .participants = 2, .timeout = milliseconds(100)});
  EXPECT_THAT(late.Hear(), AllOf(StartsWith(kTimedOut), HasSubstr("is broken, and its owner")));
  // It looks: those who try meanwhile come in.
  ForkedProgram& patient = Add({.name = "step", .participants = 2});
  parties_[0]->Tell("go");
  EXPECT_THAT(parties_[0]->Hear(), StartsWith(kBroken));
  EXPECT_EQ(patient.Hear(), "joined");
  parties_[0]->Tell("again");
  EXPECT_EQ(parties_[0]->Hear(), "joined");
  for (ForkedProgram* party : {parties_[0].get(), &patient}) party->Tell("go");
  for (ForkedProgram* party : {parties_[0].get(), &patient})
    EXPECT_THAT(party->Hear(), testing::AnyOf("last", "ended"));
  ExpectNoTrace();
}

TEST_F(BarrierTest, ItIsJoinedByAsManyAsItIsForAndByNothingElse) {
  Join(2);
  EXPECT_THAT(Add({.name = "step", .participants = 3}).Hear(),
              AllOf(StartsWith(kWrong), HasSubstr("it has 2 participants, asked for 3")));
  EXPECT_THAT(Add({.name = "step", .participants = 2, .timeout = milliseconds(50)}).Hear(),
              AllOf(StartsWith(kTimedOut), HasSubstr("has all of its 2")));
  EXPECT_THAT(Add({.name = "step", .participants = 257}).Hear(), HasSubstr("may be 1 to 256"));
  EXPECT_THAT(Add({.name = "", .participants = 2}).Hear(), HasSubstr("needs a name"));
  observer_->Connect();
  v1::AllocationSpec spec = HostSpec(4096);
  spec.set_name("data");
  auto data = observer_->MustAllocate(spec);
  EXPECT_THAT(Add({.name = "data", .participants = 2}).Hear(),
              AllOf(StartsWith(kWrong), HasSubstr("is no barrier")));
  parties_.resize(2);
  ExpectARound();
  EXPECT_TRUE(Worked(observer_->Release(data.first.lease_id())));
  data.second.clear();
  observer_.reset();
  ExpectNoTrace();
}

TEST_F(BarrierTest, WhoseDescriptorDoesNotComeLeavesNothingAndTheRetryJoins) {
  const std::string directory = daemon_->runtime_dir();
  ForkedProgram party([directory](ForkedProgram::Leader& leader) {
    Client client(At(directory));
    const BarrierOptions options{.name = "step", .participants = 1};
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const int lowest = dup(0);
    close(lowest);
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(lowest);
    setrlimit(RLIMIT_NOFILE, &none);
    std::string said = "joined";
    try {
      Barrier barrier(client, options);
    } catch (const Exception& error) {
      said = "error " + std::to_string(static_cast<int>(error.code()));
    }
    setrlimit(RLIMIT_NOFILE, &before);
    leader.Say(said);
    leader.Await();
    Barrier barrier(client, options);
    leader.Say(barrier.Wait() ? "last" : "ended");
  });
  EXPECT_EQ(party.Hear(), "error 8");  // kResourceExhausted
  EXPECT_TRUE(Eventually([&] { return IsAllFree(observer_->Node()); }));
  party.Tell("on");
  EXPECT_EQ(party.Hear(), "last");
}

TEST_F(BarrierTest, WhoWaitsLongBurnsNoProcessor) {
  const std::string directory = daemon_->runtime_dir();
  ForkedProgram waiting([directory](ForkedProgram::Leader& leader) {
    Client client(At(directory));
    Barrier barrier(client, {.name = "step", .participants = 2});
    try {
      barrier.Wait(milliseconds(1500));
    } catch (const Exception&) {
    }
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    const auto spent = [](const timeval& time) { return time.tv_sec * 1000 + time.tv_usec / 1000; };
    leader.Say(spent(used.ru_utime) + spent(used.ru_stime) < 500 ? "slept" : "burnt");
  });
  EXPECT_EQ(waiting.Hear(), "slept");
}

TEST_F(BarrierTest, WhatAForkedChildInheritsIsInert) {
  const std::string directory = daemon_->runtime_dir();
  ForkedProgram party([directory](ForkedProgram::Leader& leader) {
    Client client(At(directory));
    auto barrier =
        std::make_unique<Barrier>(client, BarrierOptions{.name = "s", .participants = 1});
    barrier->Wait();
    const pid_t child = fork();
    if (child == 0) {
      int wrong = 0;
      try {
        barrier->Wait(milliseconds(10));
        wrong = 1;
      } catch (const Exception& error) {
        wrong = error.reason() == ErrorReason::kSessionEnded ? 0 : 2;
      }
      barrier.reset();
      _exit(wrong);
    }
    int status = -1;
    waitpid(child, &status, 0);
    barrier->Wait();
    leader.Say(std::to_string(status));
  });
  EXPECT_EQ(party.Hear(), "0");
}

class BarrierRestartTest : public BarrierTest {
 protected:
  BarrierRestartTest() : BarrierTest(true) {}
};

TEST_F(BarrierRestartTest, WhoWaitsGoesOnToWait) {
  Join(3);
  for (const int i : {0, 1}) parties_[i]->Tell("go");
  EXPECT_TRUE(Eventually([&] { return Sleeps(*parties_[1]); }));
  daemon_->Kill();
  daemon_->Start();
  parties_[2]->Tell("go");
  for (const auto& party : parties_) EXPECT_THAT(party->Hear(), testing::AnyOf("last", "ended"));
  // Rounds need no daemon; the next death is noticed by the new one.
  ExpectARound();
  for (const int i : {0, 1}) parties_[i]->Tell("go");
  parties_[2]->Kill();
  for (const int i : {0, 1}) EXPECT_THAT(parties_[i]->Hear(), StartsWith(kBroken));
}

TEST_F(BarrierRestartTest, WhoDiesWhileTheDaemonIsAwayIsNoticedByTheNext) {
  Join(3);
  for (const int i : {0, 1}) parties_[i]->Tell("go");
  EXPECT_TRUE(Eventually([&] { return Sleeps(*parties_[1]); }));
  daemon_->Kill();
  parties_[2]->Kill();
  daemon_->Start();
  for (const int i : {0, 1}) {
    EXPECT_THAT(parties_[i]->Hear(), AllOf(StartsWith(kBroken), HasSubstr("participant 2 (pid")));
  }
}

TEST_F(BarrierTest, ADaemonThatComesBackWithoutItsLeasesEndsIt) {
  Join(2);
  parties_[0]->Tell("go");
  EXPECT_TRUE(Eventually([&] { return Sleeps(*parties_[0]); }));
  daemon_->Kill();
  daemon_->Start();
  EXPECT_THAT(parties_[0]->Hear(), AllOf(StartsWith("error 9 11: "), HasSubstr("is broken")));
  parties_[1]->Tell("go");
  EXPECT_THAT(parties_[1]->Hear(), HasSubstr("is broken"));
}

}  // namespace
}  // namespace gpulease::e2e
