// SPDX-License-Identifier: Apache-2.0
#include "base/process_status.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace gpulease {
namespace {

TEST(ProcessStatusTest, ThisProcessIsInItsOwnPidNamespace) {
  const std::optional<ProcessStatus> status = ReadProcessStatus(getpid());
  ASSERT_TRUE(status);
  EXPECT_EQ(status->uid, geteuid());
  EXPECT_EQ(status->pid_namespaces, 1u);
}

TEST(ProcessStatusTest, NobodyHasNoStatus) {
  EXPECT_FALSE(ReadProcessStatus(0));
  EXPECT_FALSE(ReadProcessStatus(-1));
  EXPECT_FALSE(ReadProcessStatus(1 << 30));
}

}  // namespace
}  // namespace gpulease
