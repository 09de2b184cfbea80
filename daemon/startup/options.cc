// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/options.h"

#include <sys/random.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/check.h"

namespace gpulease::startup {
namespace {

// Closing and confirming 100 GiB takes about 50 ms (H200).
constexpr Duration kReleaseWait = std::chrono::milliseconds(250);

// The one that was installed with this one, also when both were replaced meanwhile.
std::string ProgramBeside(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? name : (self.parent_path() / name).string();
}

}  // namespace

ledger::Limits LimitsOf(const settings::Settings& settings, const DescriptorBudget& budget) {
  ledger::Limits limits;
  limits.sessions_per_user = settings.sessions_per_user;
  limits.leases_per_user = settings.leases_per_user;
  limits.waits_per_user = settings.waits_per_user;
  limits.label_bytes_per_user = settings.label_bytes_per_user;
  limits.lasting_bytes_per_user = settings.lasting_bytes_per_user.value_or(~Bytes{0});
  limits.longest_linger = settings.longest_linger.value_or(ledger::kForever);
  limits.chunks = budget.chunks;
  limits.session_grace = settings.session_grace;
  limits.release_bound = settings.release_bound;
  limits.driver_retry = settings.driver_retry;
  limits.release_wait = kReleaseWait;
  return limits;
}

Bytes LargestChunk(const settings::Settings& settings, Bytes granularity) {
  return std::max<Bytes>(settings.largest_chunk / granularity, 1) * granularity;
}

// A session has a handle socket and a gRPC connection; some that have no session look around.
std::uint32_t ConnectionsPerUser(const settings::Settings& settings) {
  return 2 * settings.sessions_per_user + 64;
}

broker::Options BrokerOptions(const settings::Settings& settings, const DescriptorBudget& budget,
                              const Machine& machine) {
  broker::Options options;
  options.pools = machine.pools;
  options.unsupported_gpus = machine.unsupported;
  options.limits = LimitsOf(settings, budget);
  GPULEASE_CHECK(getrandom(&options.id_seed, sizeof options.id_seed, 0) == sizeof options.id_seed,
                 "getrandom");
  options.populate_threads = settings.populate_threads != 0
                                 ? settings.populate_threads
                                 : std::clamp(std::thread::hardware_concurrency() / 4, 1u, 8u);
  options.cuda = machine.cuda;
  options.nvml = machine.nvml;
  options.fatal_xids = settings.fatal_xids;
  options.ipc = {ProgramBeside("gpulease-ipc-host"), machine.directory,
                 machine.simulated_directory};
  return options;
}

peers::Reception::Options ReceptionOptions(const settings::Settings& settings,
                                           const DescriptorBudget& budget, const Machine& machine) {
  peers::Reception::Options options;
  options.version = GPULEASE_VERSION;
  options.simulated_directory = machine.simulated_directory;
  options.session_grace = settings.session_grace;
  options.connections_per_user = ConnectionsPerUser(settings);
  options.connections = budget.connections;
  return options;
}

rpc::NodeFacts FactsOf(const DescriptorBudget& budget, const Machine& machine) {
  rpc::NodeFacts facts;
  facts.version = GPULEASE_VERSION;
  facts.driver_version = machine.driver_version;
  facts.simulated = !machine.simulated_directory.empty();
  facts.descriptors_limit = budget.limit;
  facts.started = BootClock::now();
  return facts;
}

}  // namespace gpulease::startup
