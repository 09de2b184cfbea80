// SPDX-License-Identifier: Apache-2.0
//
// gpuleased: the daemon. This file puts the parts together and decides nothing.
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/runtime_dir.h"
#include "daemon/broker/broker.h"
#include "daemon/peers/reception.h"
#include "daemon/rpc/node_service.h"
#include "daemon/rpc/server.h"
#include "daemon/settings/settings.h"
#include "daemon/startup/descriptor_budget.h"
#include "daemon/startup/keeper_watch.h"
#include "daemon/startup/machine.h"
#include "daemon/startup/membership.h"

namespace gpulease {
namespace {

constexpr int kBadConfiguration = 78;  // EX_CONFIG: the unit does not start it again
// A stop with clients connected takes at most the sum of these.
constexpr Duration kCallsEnd = std::chrono::milliseconds(800);
constexpr Duration kLanesEnd = std::chrono::milliseconds(500);
// Closing and confirming 100 GiB takes about 50 ms (H200).
constexpr Duration kReleaseWait = std::chrono::milliseconds(250);
constexpr Duration kLaneCheck = std::chrono::seconds(5);

struct CommandLine {
  std::string config;
  std::string simulate;
  std::string runtime_dir;
  bool check_config = false;
};

int Fail(const Error& error, int exit_code = EXIT_FAILURE) {
  spdlog::error("{}", error.message);
  return exit_code;
}

template <typename T>
T Random() {
  T value{};
  GPULEASE_CHECK(getrandom(&value, sizeof value, 0) == sizeof value, "getrandom");
  return value;
}

std::string Hex(const std::array<std::uint8_t, 16>& bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

ledger::Limits LimitsOf(const settings::Settings& settings,
                        const startup::DescriptorBudget& budget) {
  ledger::Limits limits;
  limits.sessions_per_user = settings.sessions_per_user;
  limits.leases_per_user = settings.leases_per_user;
  limits.waits_per_user = settings.waits_per_user;
  limits.chunks = budget.chunks;
  limits.session_grace = settings.session_grace;
  limits.release_bound = settings.release_bound;
  limits.driver_retry = settings.driver_retry;
  limits.release_wait = kReleaseWait;
  return limits;
}

void Describe(const startup::Machine& machine) {
  for (const std::string& warning : machine.warnings) spdlog::warn("{}", warning);
  for (const broker::Pool& pool : machine.pools) {
    if (pool.spec.kind == ledger::PoolKind::kDevice) {
      spdlog::info("{} {}: {} to lease", pool.gpu.uuid, pool.gpu.name,
                   FormatBytes(pool.spec.total));
    } else {
      spdlog::info("NUMA node {}: {} to lease as pinned memory", pool.numa_node,
                   FormatBytes(pool.spec.total));
    }
  }
}

int Run(const settings::Settings& settings, const RuntimePaths& paths) {
  Result<startup::DescriptorBudget> budget = startup::RaiseDescriptorLimit();
  if (!budget.ok()) return Fail(budget.error());
  const Result<startup::Membership> membership = startup::Membership::Make(settings);
  if (!membership.ok()) return Fail(membership.error(), kBadConfiguration);
  // The kernel tells about a file lease that somebody breaks by this signal; nobody here needs to
  // be told.
  signal(SIGIO, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);

  // Signals are blocked before the first thread starts, so that every thread leaves them to the
  // loop.
  peers::EventLoop loop;
  const peers::EventLoop::Source term = loop.WatchSignal(SIGTERM, [&] { loop.Exit(); });
  const peers::EventLoop::Source interrupt = loop.WatchSignal(SIGINT, [&] { loop.Exit(); });

  Result<peers::Endpoint> endpoint = peers::OpenEndpoint(paths, settings.socket_group);
  if (!endpoint.ok()) return Fail(endpoint.error());
  Result<startup::Machine> machine = startup::FindMachine(settings, paths.directory);
  if (!machine.ok()) return Fail(machine.error());
  Describe(*machine);

  startup::KeeperWatch keeper(loop, paths.keeper_socket, GPULEASE_VERSION);
  startup::KeeperWatch::Found found = keeper.Take();
  std::array<std::uint8_t, 16> instance = found.instance;
  if (instance == std::array<std::uint8_t, 16>{}) instance = Random<std::array<std::uint8_t, 16>>();

  broker::Options options;
  options.keeper = keeper.link();
  options.instance = instance;
  options.pools = machine->pools;
  options.unsupported_gpus = machine->unsupported;
  options.limits = LimitsOf(settings, *budget);
  options.id_seed = Random<std::uint64_t>();
  options.populate_threads = settings.populate_threads != 0
                                 ? settings.populate_threads
                                 : std::clamp(std::thread::hardware_concurrency() / 4, 1u, 8u);
  options.cuda = machine->cuda;
  options.nvml = machine->nvml;
  options.tenant_of = [&](const peers::Peer& peer) { return membership->TenantOf(peer); };
  options.is_administrator = [&](const peers::Peer& peer) {
    return membership->IsAdministrator(peer);
  };
  options.report = [](const std::string& line) { spdlog::warn("{}", line); };
  broker::Broker broker(std::move(options));

  rpc::NodeFacts facts;
  facts.version = GPULEASE_VERSION;
  facts.driver_version = machine->driver_version;
  facts.simulated = !machine->simulated_directory.empty();
  facts.descriptors_limit = budget->limit;
  facts.started = BootClock::now();
  peers::PeerTable table;
  rpc::Server server(broker, table, Hex(instance), facts);

  peers::Reception::Options reception_options;
  reception_options.instance = instance;
  reception_options.version = GPULEASE_VERSION;
  reception_options.simulated_directory = machine->simulated_directory;
  reception_options.session_grace = settings.session_grace;
  reception_options.connections_per_user = 2 * settings.sessions_per_user + 64;
  reception_options.connections = budget->connections;
  auto reception = std::make_unique<peers::Reception>(
      loop, *endpoint, table, broker,
      [&](UniqueFd connection) { server.Serve(std::move(connection)); },
      std::move(reception_options));
  broker.Attach(reception.get());
  keeper.Start(broker, std::move(found));

  const peers::EventLoop::Source deadline = loop.MakeTimer([&] { broker.Tick(); });
  broker.OnDeadline(
      [&](Time at) { loop.Post([&, at] { peers::EventLoop::SetTimer(deadline, at); }); });
  peers::EventLoop::Source lane_check = loop.MakeTimer([&] {
    broker.CheckLanes();
    peers::EventLoop::SetTimer(lane_check, After(BootClock::now(), kLaneCheck));
  });
  peers::EventLoop::SetTimer(lane_check, After(BootClock::now(), kLaneCheck));

  spdlog::info("gpuleased {} serves {} (up to {} connections, {} chunks)", GPULEASE_VERSION,
               paths.directory, budget->connections, budget->chunks);
  sd_notify(0, "READY=1\nSTATUS=serving");
  loop.Run();

  sd_notify(0, "STOPPING=1\nSTATUS=stopping");
  spdlog::info("stopping");
  reception->StopAccepting();
  broker.Stop();
  keeper.Stop();
  const bool calls_ended = server.Shutdown(kCallsEnd);
  unlink(paths.handle_socket.c_str());
  unlink(paths.grpc_socket.c_str());
  if (!broker.StopLanes(kLanesEnd) || !calls_ended) {
    // What a driver call still uses must not be taken apart under it; the kernel does the rest.
    spdlog::warn("a driver call has not returned; ending without it");
    spdlog::shutdown();
    _exit(EXIT_SUCCESS);
  }
  return EXIT_SUCCESS;
}

int Main(int argc, char** argv) {
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::stderr_sink_mt>()));
  spdlog::set_pattern(std::getenv("JOURNAL_STREAM") != nullptr ? "%l: %v"
                                                               : "%Y-%m-%d %H:%M:%S.%e %l: %v");
  spdlog::flush_on(spdlog::level::info);

  CommandLine line;
  CLI::App app("Leases GPU memory and pinned host memory to the processes of this node",
               "gpuleased");
  app.set_version_flag("--version", "gpuleased " GPULEASE_VERSION);
  app.add_option("--config", line.config, "configuration file (protobuf text)")->type_name("FILE");
  app.add_option("--simulate", line.simulate,
                 "serve simulated GPUs, for trying and testing: 2x16GiB")
      ->type_name("SPEC");
  app.add_option("--runtime-dir", line.runtime_dir,
                 "directory of the sockets (default: $GPULEASE_RUNTIME_DIR, else /run/gpulease)")
      ->type_name("DIR");
  app.add_flag("--check-config", line.check_config, "check the configuration and end");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : 2;
  }

  settings::Settings settings;
  if (!line.config.empty()) {
    Result<settings::Settings> loaded = settings::LoadSettings(line.config);
    if (!loaded.ok()) return Fail(loaded.error(), kBadConfiguration);
    settings = std::move(*loaded);
  }
  if (!line.simulate.empty()) settings.simulate = line.simulate;
  spdlog::set_level(spdlog::level::from_str(settings.log_level));
  const Result<RuntimePaths> paths = ResolveRuntimePaths(line.runtime_dir);
  if (!paths.ok()) return Fail(paths.error(), 2);
  if (line.check_config) {
    std::printf("%s: ok\n", line.config.empty() ? "defaults" : line.config.c_str());
    return EXIT_SUCCESS;
  }
  return Run(settings, *paths);
}

}  // namespace
}  // namespace gpulease

int main(int argc, char** argv) { return gpulease::Main(argc, argv); }
