// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "daemon/memory/hang_up_watch.h"
#include "daemon/memory/ipc_memory.h"
#include "scratch_dir.h"

namespace gpulease::memory {
namespace {

using ledger::LeaseId;
using testing::HasSubstr;

struct Pipe {
  UniqueFd reading;
  std::shared_ptr<const UniqueFd> writing;
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    reading.Reset(ends[0]);
    writing = std::make_shared<const UniqueFd>(ends[1]);
  }
};

// Who was told, in order.
struct Told {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<LeaseId> leases;
  void Add(LeaseId lease) {
    std::lock_guard lock(mutex);
    leases.push_back(lease);
    changed.notify_all();
  }
  bool Await(LeaseId lease) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30),
                            [&] { return !leases.empty() && leases.back() == lease; });
  }
};

TEST(HangUpWatchTest, TellsOnceOfEachThatIsGoneAndOfNoOther) {
  Told told;
  HangUpWatch watch([&](LeaseId lease) { told.Add(lease); });
  Pipe first, forgotten, second;
  ASSERT_TRUE(watch.Watch(LeaseId{1}, first.writing).ok());
  ASSERT_TRUE(watch.Watch(LeaseId{2}, forgotten.writing).ok());
  ASSERT_TRUE(watch.Watch(LeaseId{3}, second.writing).ok());
  watch.Forget(LeaseId{2});
  watch.Forget(LeaseId{7});
  EXPECT_EQ(forgotten.writing.use_count(), 1) << "it lets go of what is forgotten";
  forgotten.reading.Reset();
  first.reading.Reset();
  ASSERT_TRUE(told.Await(LeaseId{1}));
  second.reading.Reset();
  ASSERT_TRUE(told.Await(LeaseId{3}));
  // One that is gone before it is watched.
  ASSERT_TRUE(watch.Watch(LeaseId{4}, first.writing).ok());
  ASSERT_TRUE(told.Await(LeaseId{4}));
  watch.Stop();
  EXPECT_EQ(told.leases.size(), 3u);
  EXPECT_EQ(first.writing.use_count(), 1);
  EXPECT_FALSE(watch.Watch(LeaseId{5}, second.writing).ok());
}

class IpcMemoryTest : public testing::Test {
 protected:
  Error Refusal(const std::string& program) {
    IpcMemory memory({program, scratch_.path(), ""}, "GPU-x");
    const Result<bool> prepared = memory.Prepare();
    EXPECT_FALSE(prepared.ok());
    // Nothing of the attempt stays.
    EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
    return prepared.ok() ? Error() : prepared.error();
  }
  ScratchDir scratch_;
};

TEST_F(IpcMemoryTest, SaysWhatIsMissingWhereTheProgramIsNotThere) {
  const Error error = Refusal("/nonexistent/gpulease-ipc-host");
  EXPECT_EQ(error.code, Code::kFailedPrecondition);
  EXPECT_THAT(error.message, HasSubstr("/nonexistent/gpulease-ipc-host"));
  EXPECT_THAT(error.message, HasSubstr("No such file"));
}

TEST_F(IpcMemoryTest, SaysThatAProgramEndedWhichCannotRun) {
  EXPECT_THAT(Refusal("/bin/false").message, HasSubstr("ended at once"));
}

TEST_F(IpcMemoryTest, DoesNotTakeAProgramThatDoesNothingForAHost) {
  IpcMemory memory({"/bin/true", scratch_.path(), ""}, "GPU-x");
  const Result<bool> prepared = memory.Prepare();
  ASSERT_FALSE(prepared.ok());
  EXPECT_EQ(prepared.error().code, Code::kUnavailable);
  EXPECT_THAT(prepared.error().message, HasSubstr("ended as soon as it was started"));
}

TEST_F(IpcMemoryTest, RefusesADirectoryWhosePathIsTooLongForASocket) {
  IpcMemory memory({"/bin/false", "/tmp/" + std::string(100, 'x'), ""}, "GPU-x");
  const Result<bool> prepared = memory.Prepare();
  ASSERT_FALSE(prepared.ok());
  EXPECT_THAT(prepared.error().message, HasSubstr("--runtime-dir"));
}

}  // namespace
}  // namespace gpulease::memory
