// SPDX-License-Identifier: Apache-2.0
#include "base/runtime_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace gpulease {
namespace {

TEST(RuntimeDirTest, AnArgumentBeatsTheEnvironmentAndThatTheDefault) {
  unsetenv("GPULEASE_RUNTIME_DIR");
  EXPECT_EQ(ResolveRuntimePaths("")->grpc_socket, "/run/gpulease/gpulease.sock");
  setenv("GPULEASE_RUNTIME_DIR", "/tmp/a", 1);
  EXPECT_EQ(ResolveRuntimePaths("")->handle_socket, "/tmp/a/handles.sock");
  EXPECT_EQ(ResolveRuntimePaths("/tmp/b/")->directory, "/tmp/b");
  unsetenv("GPULEASE_RUNTIME_DIR");
}

TEST(RuntimeDirTest, SaysThatAPathIsTooLong) {
  const auto paths = ResolveRuntimePaths("/" + std::string(100, 'x'));
  ASSERT_FALSE(paths.ok());
  EXPECT_EQ(paths.error().code, Code::kInvalidArgument);
  EXPECT_THAT(paths.error().message,
              testing::HasSubstr("too long: a unix socket's path holds 107 bytes"));
}

TEST(RuntimeDirTest, RefusesARelativePath) { EXPECT_FALSE(ResolveRuntimePaths("run").ok()); }

}  // namespace
}  // namespace gpulease
