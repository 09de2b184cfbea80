// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "daemon/memory/cgroup_room.h"
#include "tests/unit/scratch_dir.h"

namespace gpulease::memory {
namespace {

constexpr Bytes kNoLimit = ~Bytes{0};

class CgroupRoomTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path full = folder_.path() + "/" + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text << "\n";
  }
  // Of a process with this line in /proc/self/cgroup.
  Bytes Room(const std::string& membership) const {
    Write("membership", membership);
    return CgroupRoom({folder_.path() + "/membership", folder_.path() + "/mount"});
  }

  ScratchDir folder_;
};

TEST_F(CgroupRoomTest, NoLimitIsNoLimit) {
  EXPECT_EQ(Room("0::/system.slice/gpuleased.service"), kNoLimit);
  Write("mount/system.slice/gpuleased.service/memory.max", "max");
  Write("mount/system.slice/gpuleased.service/memory.high", "max");
  Write("mount/system.slice/gpuleased.service/memory.current", "4096");
  EXPECT_EQ(Room("0::/system.slice/gpuleased.service"), kNoLimit);
  EXPECT_EQ(Room(""), kNoLimit);
}

TEST_F(CgroupRoomTest, TheTightestOfAllFromItUpwardsCounts) {
  Write("mount/a/b/memory.max", "1000");
  Write("mount/a/b/memory.current", "100");
  EXPECT_EQ(Room("0::/a/b"), 900u);
  Write("mount/a/b/memory.high", "800");
  EXPECT_EQ(Room("0::/a/b"), 700u);
  Write("mount/a/memory.max", "1000");
  Write("mount/a/memory.current", "600");
  EXPECT_EQ(Room("0::/a/b"), 400u);
  EXPECT_EQ(Room("0::/a"), 400u);
  Write("mount/a/memory.current", "1600");
  EXPECT_EQ(Room("0::/a/b"), 0u);
}

TEST_F(CgroupRoomTest, WhatFilesHaveAndNobodyUsesIsRoom) {
  Write("mount/a/memory.max", "1000");
  Write("mount/a/memory.current", "900");
  Write("mount/a/memory.stat", "anon 300\nactive_file 100\ninactive_file 500\nslab 1");
  EXPECT_EQ(Room("0::/a"), 600u);
}

// Where cgroups have a namespace, a container's own is "/"; its limit was not looked at.
TEST_F(CgroupRoomTest, AContainersOwnCgroupMayBeTheRootOfAll) {
  Write("mount/memory.max", "1000");
  Write("mount/memory.current", "400");
  EXPECT_EQ(Room("0::/"), 600u);
  // As the machine names it, where the mount has its own alone.
  EXPECT_EQ(Room("0::/kubepods.slice/pod1/c1"), 600u);
  EXPECT_EQ(Room("0::/../c1"), 600u);
}

// Seen on a machine with cgroup v1: the daemon was killed for a lease beyond its limit.
TEST_F(CgroupRoomTest, Version1HasLimitsToo) {
  Write("mount/memory/docker/1/memory.limit_in_bytes", "1000");
  Write("mount/memory/docker/1/memory.usage_in_bytes", "700");
  Write("mount/memory/docker/1/memory.stat", "cache 1\ninactive_file 1\ntotal_inactive_file 200");
  EXPECT_EQ(Room("9:name=systemd:/docker/1\n4:memory:/docker/1\n0::/docker/1"), 500u);
  EXPECT_EQ(Room("4:cpu,memory:/docker/1"), 500u);
  EXPECT_EQ(Room("4:cpu:/docker/1"), kNoLimit);
}

}  // namespace
}  // namespace gpulease::memory
