// SPDX-License-Identifier: Apache-2.0
#include "daemon/settings/settings.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>

#include "gpulease/v1/config.pb.h"

namespace gpulease::settings {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

constexpr std::uint32_t kMostGpus = 128;
constexpr int kMostXids = 64;
constexpr std::uint64_t kLongestLingerMs = 366ull * 24 * 3600 * 1000;

// The first mistake that the parser finds, with its place.
class FirstMistake : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstMistake(const std::string& file) : file_(file) {}
  void AddError(int line, int column, const std::string& message) override {
    if (!text_.empty()) return;
    text_ =
        file_ + ":" + std::to_string(line + 1) + ":" + std::to_string(column + 1) + ": " + message;
  }
  void AddWarning(int line, int column, const std::string& message) override {
    AddError(line, column, message);
  }
  const std::string& text() const { return text_; }

 private:
  const std::string& file_;
  std::string text_;
};

// Checks values, field by field, and keeps the first mistake.
class Checker {
 public:
  Checker(const std::string& file, const google::protobuf::Message& message,
          TextFormat::ParseInfoTree* places, std::string prefix)
      : file_(file), message_(message), places_(places), prefix_(std::move(prefix)) {}

  void Fail(const char* field, const std::string& what) {
    if (!mistake_.empty()) return;
    const FieldDescriptor* const descriptor = message_.GetDescriptor()->FindFieldByName(field);
    const TextFormat::ParseLocation place =
        places_->GetLocation(descriptor, descriptor->is_repeated() ? 0 : -1);
    mistake_ = file_ + ":" + std::to_string(place.line + 1) + ": " + prefix_ + field + ": " + what;
  }
  Bytes Amount(const char* field, const std::string& text, Bytes fallback) {
    if (text.empty()) return fallback;
    const std::optional<Bytes> bytes = ParseBytes(text);
    if (!bytes)
      Fail(field,
           "\"" + text + "\" is no amount of memory; write it as \"16GiB\", \"512MiB\" or \"0B\"");
    return bytes.value_or(fallback);
  }
  std::uint32_t Number(const char* field, bool given, std::uint32_t value, std::uint32_t fallback,
                       std::uint32_t least, std::uint32_t most) {
    if (!given) return fallback;
    if (value < least || value > most) {
      Fail(field, std::to_string(value) + " is outside " + std::to_string(least) + " to " +
                      std::to_string(most));
    }
    return value;
  }
  const std::string& mistake() const { return mistake_; }

 private:
  const std::string& file_;
  const google::protobuf::Message& message_;
  TextFormat::ParseInfoTree* places_;
  std::string prefix_;
  std::string mistake_;
};

bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= 64 &&
         text.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
             std::string_view::npos;
}

// "GPU-8-4-4-4-12" hexadecimal digits.
bool IsGpuUuid(std::string_view text) {
  constexpr std::string_view kPattern = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (text.size() != kPattern.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool digit = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
    if (kPattern[i] == 'x' ? !digit : text[i] != kPattern[i]) return false;
  }
  return true;
}

Error Mistake(std::string text) {
  return MakeError(Code::kInvalidArgument, Reason::kBadField, std::move(text));
}

}  // namespace

Result<Settings> ParseSettings(std::string_view text, const std::string& file) {
  v1::Config config;
  FirstMistake first(file);
  TextFormat::ParseInfoTree places;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&first);
  parser.WriteLocationsTo(&places);
  if (!parser.ParseFromString(std::string(text), &config)) return Mistake(first.text());

  Settings settings;
  Checker check(file, config, &places, "");
  settings.simulate = config.simulate();
  settings.socket_group = config.socket_group();
  settings.admin_group = config.admin_group();
  settings.operator_group = config.operator_group();
  settings.device_headroom =
      check.Amount("device_headroom", config.device_headroom(), settings.device_headroom);
  settings.host_memory_percent =
      check.Number("host_memory_percent", config.has_host_memory_percent(),
                   config.host_memory_percent(), settings.host_memory_percent, 1, 95);
  settings.largest_chunk =
      check.Amount("largest_chunk", config.largest_chunk(), settings.largest_chunk);
  if (settings.largest_chunk < 2 * kMiB || settings.largest_chunk % (2 * kMiB) != 0 ||
      settings.largest_chunk > 1024 * kGiB) {
    check.Fail("largest_chunk", "must be a multiple of 2MiB, from 2MiB to 1024GiB");
  }
  settings.sessions_per_user =
      check.Number("sessions_per_user", config.has_sessions_per_user(), config.sessions_per_user(),
                   settings.sessions_per_user, 1, 1'000'000);
  settings.leases_per_user =
      check.Number("leases_per_user", config.has_leases_per_user(), config.leases_per_user(),
                   settings.leases_per_user, 1, 10'000'000);
  settings.waits_per_user =
      check.Number("waits_per_user", config.has_waits_per_user(), config.waits_per_user(),
                   settings.waits_per_user, 1, 1'000'000);
  settings.label_bytes_per_user = check.Amount(
      "label_bytes_per_user", config.label_bytes_per_user(), settings.label_bytes_per_user);
  if (!config.lasting_bytes_per_user().empty()) {
    settings.lasting_bytes_per_user =
        check.Amount("lasting_bytes_per_user", config.lasting_bytes_per_user(), 0);
  }
  if (config.has_longest_linger_ms()) {
    if (config.longest_linger_ms() > kLongestLingerMs)
      check.Fail("longest_linger_ms", "more than a year: leave it out for no bound");
    settings.longest_linger = std::chrono::milliseconds(config.longest_linger_ms());
  }
  const auto milliseconds = [&](const char* field, bool given, std::uint32_t value,
                                Duration fallback) -> Duration {
    if (!given) return fallback;
    return std::chrono::milliseconds(check.Number(field, true, value, value, 0, 86'400'000));
  };
  settings.session_grace = milliseconds("session_grace_ms", config.has_session_grace_ms(),
                                        config.session_grace_ms(), settings.session_grace);
  settings.release_bound = milliseconds("release_bound_ms", config.has_release_bound_ms(),
                                        config.release_bound_ms(), settings.release_bound);
  settings.driver_retry = milliseconds("driver_retry_ms", config.has_driver_retry_ms(),
                                       config.driver_retry_ms(), settings.driver_retry);
  settings.populate_threads =
      check.Number("populate_threads", config.has_populate_threads(), config.populate_threads(),
                   settings.populate_threads, 0, 64);
  settings.gpu_wait = milliseconds("gpu_wait_ms", config.has_gpu_wait_ms(), config.gpu_wait_ms(),
                                   settings.gpu_wait);
  for (const std::string& uuid : config.expected_gpus()) {
    if (!IsGpuUuid(uuid)) {
      check.Fail("expected_gpus",
                 "\"" + uuid + "\" is no UUID; write it as nvidia-smi -L prints it, GPU-…");
    }
    settings.expected_gpus.push_back(uuid);
  }
  if (config.has_expected_gpu_count()) {
    const auto named = static_cast<std::uint32_t>(config.expected_gpus_size());
    settings.expected_gpu_count =
        check.Number("expected_gpu_count", true, config.expected_gpu_count(), 0, named, kMostGpus);
  }
  if (config.fatal_xids_size() > 0) {
    if (config.fatal_xids_size() > kMostXids)
      check.Fail("fatal_xids", "more than " + std::to_string(kMostXids));
    settings.fatal_xids = {config.fatal_xids().begin(), config.fatal_xids().end()};
    if (settings.fatal_xids.erase(0) > 0 && !settings.fatal_xids.empty())
      check.Fail("fatal_xids", "0 means none: it stands alone");
  }
  if (!config.log_level().empty()) settings.log_level = config.log_level();
  static const std::set<std::string> kLevels = {"trace", "debug", "info", "warn", "error"};
  if (!kLevels.contains(settings.log_level)) {
    check.Fail("log_level",
               "\"" + settings.log_level + "\" is none of trace, debug, info, warn, error");
  }
  if (!check.mistake().empty()) return Mistake(check.mistake());

  const FieldDescriptor* const tenants = config.GetDescriptor()->FindFieldByName("tenants");
  std::set<std::string> names;
  for (int i = 0; i < config.tenants_size(); ++i) {
    const v1::TenantConfig& in = config.tenants(i);
    Checker tenant_check(file, in, places.GetTreeForNested(tenants, i),
                         "tenants[" + std::to_string(i) + "].");
    Tenant out;
    out.name = in.name();
    if (!IsName(out.name)) {
      tenant_check.Fail("name", "must have 1 to 64 characters of A-Z a-z 0-9 . _ -");
    } else if (!names.insert(out.name).second) {
      tenant_check.Fail("name", "\"" + out.name + "\" is the name of an earlier tenant");
    }
    if (in.has_uid()) out.uid = in.uid();
    if (in.has_gid()) out.gid = in.gid();
    out.cgroup_prefix = in.cgroup_prefix();
    if (!out.cgroup_prefix.empty() && out.cgroup_prefix.front() != '/') {
      tenant_check.Fail("cgroup_prefix", "must begin with \"/\", as in /proc/PID/cgroup");
    }
    if (!out.uid && !out.gid && out.cgroup_prefix.empty()) {
      tenant_check.Fail("name",
                        "\"" + out.name + "\" matches nobody: give uid, gid or cgroup_prefix");
    }
    out.device_limit = tenant_check.Amount("device_limit", in.device_limit(), 0);
    out.host_limit = tenant_check.Amount("host_limit", in.host_limit(), 0);
    if (!tenant_check.mistake().empty()) return Mistake(tenant_check.mistake());
    settings.tenants.push_back(std::move(out));
  }
  const FieldDescriptor* const realms = config.GetDescriptor()->FindFieldByName("realms");
  for (int i = 0; i < config.realms_size(); ++i) {
    const v1::RealmConfig& in = config.realms(i);
    Checker realm_check(file, in, places.GetTreeForNested(realms, i),
                        "realms[" + std::to_string(i) + "].");
    if (!in.name().empty() && !IsName(in.name())) {
      realm_check.Fail("name", "must be empty or have 1 to 64 characters of A-Z a-z 0-9 . _ -");
    }
    if (!in.cgroup_prefix().starts_with('/')) {
      realm_check.Fail("cgroup_prefix", "must begin with \"/\", as in /proc/PID/cgroup");
    }
    if (!realm_check.mistake().empty()) return Mistake(realm_check.mistake());
    settings.realms.push_back({in.name(), in.cgroup_prefix()});
  }
  return settings;
}

Result<Settings> LoadSettings(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) return WithContext("configuration", ErrnoError(file, errno));
  std::stringstream text;
  text << stream.rdbuf();
  if (stream.bad()) return WithContext("configuration", ErrnoError(file, EIO));
  return ParseSettings(text.str(), file);
}

}  // namespace gpulease::settings
