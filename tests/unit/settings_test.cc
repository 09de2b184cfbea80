// SPDX-License-Identifier: Apache-2.0
#include "daemon/settings/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpulease::settings {
namespace {

std::string MistakeIn(std::string_view text) {
  const auto settings = ParseSettings(text, "x.textproto");
  return settings.ok() ? "no mistake found" : settings.error().message;
}

TEST(SettingsTest, AnEmptyFileGivesTheDefaults) {
  const auto settings = ParseSettings("", "x.textproto");
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->largest_chunk, 8 * kGiB);
  EXPECT_EQ(settings->host_memory_percent, 50u);
  EXPECT_EQ(settings->session_grace, std::chrono::seconds(30));
}

TEST(SettingsTest, TheShippedFileHasTheDefaultsAndEveryOption) {
  const char* const source = std::getenv("GPULEASE_SOURCE_DIR");
  ASSERT_NE(source, nullptr);
  const auto shipped = LoadSettings(std::string(source) + "/config/gpuleased.textproto");
  ASSERT_TRUE(shipped.ok()) << shipped.error().message;
  const Settings defaults;
  EXPECT_EQ(shipped->simulate, defaults.simulate);
  EXPECT_EQ(shipped->device_headroom, defaults.device_headroom);
  EXPECT_EQ(shipped->host_memory_percent, defaults.host_memory_percent);
  EXPECT_EQ(shipped->largest_chunk, defaults.largest_chunk);
  EXPECT_EQ(shipped->sessions_per_user, defaults.sessions_per_user);
  EXPECT_EQ(shipped->leases_per_user, defaults.leases_per_user);
  EXPECT_EQ(shipped->waits_per_user, defaults.waits_per_user);
  EXPECT_EQ(shipped->session_grace, defaults.session_grace);
  EXPECT_EQ(shipped->release_bound, defaults.release_bound);
  EXPECT_EQ(shipped->driver_retry, defaults.driver_retry);
  EXPECT_EQ(shipped->populate_threads, defaults.populate_threads);
  EXPECT_EQ(shipped->log_level, defaults.log_level);
  EXPECT_TRUE(shipped->tenants.empty());
  EXPECT_EQ(shipped->gpu_wait, defaults.gpu_wait);
  EXPECT_TRUE(shipped->expected_gpus.empty());
  EXPECT_EQ(shipped->expected_gpu_count, std::nullopt);
  EXPECT_EQ(shipped->fatal_xids, defaults.fatal_xids);
}

TEST(SettingsTest, AMistakeNamesFileLineAndField) {
  EXPECT_EQ(
      MistakeIn("log_level: \"info\"\nlog_lewel: \"info\""),
      "x.textproto:2:10: Message type \"gpulease.v1.Config\" has no field named \"log_lewel\".");
  EXPECT_EQ(
      MistakeIn("\n\ndevice_headroom: \"2GB\""),
      "x.textproto:3: device_headroom: \"2GB\" is no amount of memory; write it as \"16GiB\", "
      "\"512MiB\" or \"0B\"");
  EXPECT_THAT(MistakeIn("host_memory_percent: 96"),
              testing::HasSubstr("x.textproto:1: host_memory_percent: 96"));
  EXPECT_THAT(MistakeIn("largest_chunk: \"3MiB\""),
              testing::HasSubstr("largest_chunk: must be a multiple"));
  EXPECT_THAT(MistakeIn("log_level: \"loud\""),
              testing::HasSubstr("log_level: \"loud\" is none of"));
  EXPECT_THAT(
      MistakeIn("tenants { name: \"a\" uid: 1 }\ntenants { name: \"a\" uid: 2 }"),
      testing::HasSubstr("x.textproto:2: tenants[1].name: \"a\" is the name of an earlier tenant"));
  EXPECT_THAT(MistakeIn("tenants { name: \"a\" }"), testing::HasSubstr("matches nobody"));
  EXPECT_THAT(MistakeIn("tenants { name: \"a\" cgroup_prefix: \"x\" }"),
              testing::HasSubstr("must begin with"));
}

TEST(SettingsTest, ExpectedGpusAreUuidsAndNoFewerThanAreNamed) {
  const std::string named = "expected_gpus: \"GPU-0d46a40f-0576-bc48-cbed-3b6949a86910\"\n";
  const auto settings = ParseSettings(named + "expected_gpu_count: 8", "x.textproto");
  ASSERT_TRUE(settings.ok()) << settings.error().message;
  EXPECT_THAT(settings->expected_gpus,
              testing::ElementsAre("GPU-0d46a40f-0576-bc48-cbed-3b6949a86910"));
  EXPECT_EQ(settings->expected_gpu_count, 8u);
  EXPECT_EQ(ParseSettings("expected_gpu_count: 0", "x.textproto")->expected_gpu_count, 0u);
  EXPECT_THAT(MistakeIn("expected_gpus: \"GPU-0\""),
              testing::HasSubstr("expected_gpus: \"GPU-0\" is no UUID"));
  EXPECT_THAT(MistakeIn(named + "expected_gpu_count: 0"),
              testing::HasSubstr("expected_gpu_count: 0 is outside 1 to"));
}

TEST(SettingsTest, FatalXidsAreAListOrNone) {
  EXPECT_THAT(ParseSettings("fatal_xids: [79, 48]", "x.textproto")->fatal_xids,
              testing::ElementsAre(48, 79));
  EXPECT_TRUE(ParseSettings("fatal_xids: 0", "x.textproto")->fatal_xids.empty());
  EXPECT_THAT(MistakeIn("fatal_xids: [0, 79]"),
              testing::HasSubstr("x.textproto:1: fatal_xids: 0 means none"));
}

TEST(SettingsTest, AMissingFileIsNamed) {
  EXPECT_EQ(LoadSettings("/nonexistent/x").error().message,
            "configuration: /nonexistent/x: No such file or directory");
}

}  // namespace
}  // namespace gpulease::settings
