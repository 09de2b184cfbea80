// SPDX-License-Identifier: Apache-2.0
//
// Settings: what an administrator decides, read from protobuf text and checked as a whole before
// anything uses it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/result.h"

namespace gpulease::settings {

struct Tenant {
  std::string name;
  std::optional<std::uint32_t> uid;
  std::optional<std::uint32_t> gid;
  std::string cgroup_prefix;
  Bytes device_limit = 0;  // 0: none
  Bytes host_limit = 0;

  friend bool operator==(const Tenant&, const Tenant&) = default;
};

// Containers below a cgroup, whose users are one another's.
struct RealmRule {
  std::string name;  // empty: the machine's own
  std::string cgroup_prefix;
  bool operator==(const RealmRule&) const = default;
};

// Every option of gpulease.v1.Config with its default.
struct Settings {
  std::string simulate;
  std::string socket_group;
  std::string admin_group;
  std::string operator_group;
  Bytes device_headroom = 0;
  std::uint32_t host_memory_percent = 50;
  Bytes largest_chunk = 8 * kGiB;
  std::uint32_t sessions_per_user = 4096;
  std::uint32_t leases_per_user = 65536;
  std::uint32_t waits_per_user = 1024;
  Bytes label_bytes_per_user = 16 * kMiB;
  std::optional<Bytes> lasting_bytes_per_user;
  std::optional<Duration> longest_linger;
  Duration session_grace = std::chrono::seconds(30);
  Duration release_bound = std::chrono::seconds(5);
  Duration driver_retry = std::chrono::seconds(2);
  std::uint32_t populate_threads = 0;
  std::string log_level = "info";
  std::vector<Tenant> tenants;
  std::vector<std::string> expected_gpus;  // UUIDs
  std::optional<std::uint32_t> expected_gpu_count;
  Duration gpu_wait = std::chrono::seconds(60);
  std::vector<RealmRule> realms;
  std::set<std::uint32_t> fatal_xids = {46, 62, 64, 79, 95, 119, 120, 136, 140, 143};
};

// Reads `text`; `file` is for messages alone.
//
// Errors: kInvalidArgument/kBadField, "FILE:LINE: field: what is wrong and what is right".
Result<Settings> ParseSettings(std::string_view text, const std::string& file);

// Reads the file. Errors: ErrnoError of opening it, and those of ParseSettings.
Result<Settings> LoadSettings(const std::string& file);

}  // namespace gpulease::settings
