// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/reload.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/startup/notification.h"
#include "daemon/startup/options.h"

namespace gpulease::startup {
namespace {

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

Difference Compare(const settings::Settings& before, const settings::Settings& after) {
  Difference difference;
  using Settings = settings::Settings;
  const auto look = [&](std::vector<std::string>& list, const char* name, auto Settings::*option) {
    if (!(before.*option == after.*option)) list.emplace_back(name);
  };
  look(difference.now, "log_level", &Settings::log_level);
  look(difference.now, "admin_group", &Settings::admin_group);
  look(difference.now, "operator_group", &Settings::operator_group);
  look(difference.now, "realms", &Settings::realms);
  look(difference.now, "tenants", &Settings::tenants);
  look(difference.now, "device_headroom", &Settings::device_headroom);
  look(difference.now, "largest_chunk", &Settings::largest_chunk);
  look(difference.now, "sessions_per_user", &Settings::sessions_per_user);
  look(difference.now, "leases_per_user", &Settings::leases_per_user);
  look(difference.now, "waits_per_user", &Settings::waits_per_user);
  look(difference.now, "label_bytes_per_user", &Settings::label_bytes_per_user);
  look(difference.now, "lasting_bytes_per_user", &Settings::lasting_bytes_per_user);
  look(difference.now, "longest_linger_ms", &Settings::longest_linger);
  look(difference.now, "session_grace_ms", &Settings::session_grace);
  look(difference.now, "release_bound_ms", &Settings::release_bound);
  look(difference.now, "driver_retry_ms", &Settings::driver_retry);
  look(difference.next, "simulate", &Settings::simulate);
  look(difference.next, "socket_group", &Settings::socket_group);
  look(difference.next, "host_memory_percent", &Settings::host_memory_percent);
  look(difference.next, "populate_threads", &Settings::populate_threads);
  look(difference.next, "expected_gpus", &Settings::expected_gpus);
  look(difference.next, "expected_gpu_count", &Settings::expected_gpu_count);
  look(difference.next, "gpu_wait_ms", &Settings::gpu_wait);
  look(difference.next, "fatal_xids", &Settings::fatal_xids);
  return difference;
}

ledger::Terms TermsOf(const settings::Settings& settings, const std::vector<broker::Pool>& pools,
                      const std::shared_ptr<const Membership>& membership) {
  ledger::Terms terms;
  terms.limits = LimitsOf(settings, {});
  for (const settings::Tenant& tenant : settings.tenants)
    terms.tenants.push_back({tenant.name, tenant.device_limit, tenant.host_limit});
  for (const broker::Pool& pool : pools) {
    if (pool.spec.kind == ledger::PoolKind::kDevice) {
      terms.pools.push_back(
          {settings.device_headroom, LargestChunk(settings, pool.spec.granularity)});
    } else {
      terms.pools.push_back({pool.spec.headroom, settings.largest_chunk});
    }
  }
  terms.is_administrator = [membership](const ledger::UserSpec& user) {
    return membership->IsAdministrator(user);
  };
  terms.is_observer = [membership](const ledger::UserSpec& user) {
    return membership->IsObserver(user);
  };
  return terms;
}

Result<std::string> Reload::Apply() {
  if (line_.config.empty()) return std::string("there is no configuration file to read again");
  Result<settings::Settings> settings = LoadSettings(line_);
  if (!settings.ok()) return std::move(settings).error();
  Result<Membership> membership = Membership::Make(*settings);
  if (!membership.ok()) return WithContext(line_.config, membership.error());
  // Nothing can fail from here on.
  const Difference difference = Compare(settings_, *settings);
  settings_ = std::move(*settings);
  membership_.Set(std::move(*membership));
  broker_.SetTerms(TermsOf(settings_, broker_.pools(), membership_.Get()));
  reception_.SetTerms(settings_.session_grace, ConnectionsPerUser(settings_));
  spdlog::set_level(spdlog::level::from_str(settings_.log_level));
  std::string said = line_.config + ": ";
  said += difference.now.empty() ? "nothing changes now" : "changed " + Joined(difference.now);
  if (!difference.next.empty())
    said += "; at the next start takes effect: " + Joined(difference.next);
  return said;
}

void Reload::Run() {
  // While it waits for the driver it is not ready, with any configuration.
  const bool ready = broker_.admits();
  if (ready) TellReloading();
  const Result<std::string> said = Apply();
  if (said.ok()) {
    // Also where the log is quiet now.
    spdlog::log(std::max(spdlog::level::info, spdlog::get_level()), "reload: {}", *said);
    if (ready) TellReady();
  } else {
    spdlog::error("reload: nothing was changed: {}", said.error().message);
    if (ready) TellReady("serving; the last reload changed nothing: " + said.error().message);
  }
}

}  // namespace gpulease::startup
