// SPDX-License-Identifier: Apache-2.0
//
// gpuleased: the daemon. This file puts the parts together and decides nothing.
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/runtime_dir.h"
#include "daemon/broker/broker.h"
#include "daemon/peers/reception.h"
#include "daemon/rpc/node_service.h"
#include "daemon/rpc/server.h"
#include "daemon/startup/arrivals.h"
#include "daemon/startup/command_line.h"
#include "daemon/startup/continuation.h"
#include "daemon/startup/descriptor_budget.h"
#include "daemon/startup/keeper_watch.h"
#include "daemon/startup/machine.h"
#include "daemon/startup/membership.h"
#include "daemon/startup/notification.h"
#include "daemon/startup/options.h"
#include "daemon/startup/reload.h"
#include "daemon/startup/renewal.h"
#include "daemon/startup/watchdog.h"

namespace gpulease {
namespace {

constexpr int kBadConfiguration = 78;  // EX_CONFIG: the unit does not start it again
// A stop with clients connected takes at most the sum of these.
constexpr Duration kCallsEnd = std::chrono::milliseconds(800);
constexpr Duration kLanesEnd = std::chrono::milliseconds(500);
constexpr Duration kLaneCheck = std::chrono::seconds(5);

int Fail(const Error& error, int exit_code = EXIT_FAILURE) {
  spdlog::error("{}", error.message);
  return exit_code;
}

std::string Hex(const std::array<std::uint8_t, 16>& bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
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

// Until a signal ends it, or executes itself anew with `arguments`.
int Run(char** arguments, const startup::CommandLine& line, const settings::Settings& settings,
        const RuntimePaths& paths) {
  const std::optional<startup::Continuation> before = startup::TakeContinuation();
  startup::Continuation continuation = before.value_or(startup::Continuation());
  startup::LimitDriver(continuation);
  Result<startup::DescriptorBudget> budget = startup::RaiseDescriptorLimit();
  if (!budget.ok()) return Fail(budget.error());
  Result<startup::Membership> made = startup::Membership::Make(settings);
  if (!made.ok()) return Fail(made.error(), kBadConfiguration);
  startup::CurrentMembership membership(std::move(*made));
  // The kernel tells about a file lease that somebody breaks by this signal; nobody here needs to
  // be told.
  signal(SIGIO, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);

  // Signals are blocked before the first thread starts, so that every thread leaves them to the
  // loop.
  peers::EventLoop loop;
  bool stopped = false;
  const auto stop = [&] {
    stopped = true;
    loop.Exit();
  };
  const peers::EventLoop::Source term = loop.WatchSignal(SIGTERM, stop);
  const peers::EventLoop::Source interrupt = loop.WatchSignal(SIGINT, stop);
  std::function<void()> on_hang_up;
  const peers::EventLoop::Source hang_up = loop.WatchSignal(SIGHUP, [&] { on_hang_up(); });

  Result<peers::Endpoint> endpoint =
      before ? startup::AdoptEndpoint(*before) : peers::OpenEndpoint(paths, settings.socket_group);
  if (!endpoint.ok()) return Fail(endpoint.error());
  Result<startup::Machine> machine = [&] {
    const startup::LongStep step("initialising the GPUs");
    return startup::FindMachine(settings, paths.directory, continuation);
  }();
  if (!machine.ok()) return Fail(machine.error());
  Describe(*machine);

  startup::KeeperWatch keeper(loop, paths.keeper_socket, GPULEASE_VERSION);
  startup::KeeperWatch::Found found = keeper.Take();
  const std::array<std::uint8_t, 16> instance = found.instance;

  broker::Options options = startup::BrokerOptions(settings, *budget, *machine);
  options.keeper = keeper.link();
  options.instance = instance;
  options.tenant_of = [&](const peers::Peer& peer) { return membership.Get()->TenantOf(peer); };
  options.is_administrator = [&](const ledger::UserSpec& user) {
    return membership.Get()->IsAdministrator(user);
  };
  options.is_observer = [&](const ledger::UserSpec& user) {
    return membership.Get()->IsObserver(user);
  };
  options.report = [](const std::string& line) { spdlog::warn("{}", line); };
  std::function<void(const std::string&)> on_retired;
  options.on_retired = [&](const std::string& why) { loop.Post([&, why] { on_retired(why); }); };
  broker::Broker broker(std::move(options));

  peers::PeerTable table;
  rpc::Server server(broker, table, Hex(instance), startup::FactsOf(*budget, *machine));

  peers::Reception::Options reception_options =
      startup::ReceptionOptions(settings, *budget, *machine);
  reception_options.instance = instance;
  reception_options.place = [&](peers::Peer& peer) { membership.Get()->Place(peer); };
  auto reception = std::make_unique<peers::Reception>(
      loop, *endpoint, table, broker,
      [&](UniqueFd connection) { server.Serve(std::move(connection)); },
      std::move(reception_options));
  broker.Attach(reception.get());
  broker.KeepRetired(before ? continuation.retired : found.retired);
  keeper.Start(broker, std::move(found));

  startup::Reload reload(line, settings, membership, broker, *reception);
  on_hang_up = [&] { reload.Run(); };

  const peers::EventLoop::Source deadline = loop.MakeTimer([&] { broker.Tick(); });
  broker.OnDeadline(
      [&](Time at) { loop.Post([&, at] { peers::EventLoop::SetTimer(deadline, at); }); });
  peers::EventLoop::Source lane_check = loop.MakeTimer([&] {
    broker.CheckLanes();
    peers::EventLoop::SetTimer(lane_check, After(BootClock::now(), kLaneCheck));
  });
  peers::EventLoop::SetTimer(lane_check, After(BootClock::now(), kLaneCheck));

  // By the way of a request: a call's thread, the broker's lock, and back.
  std::optional<startup::Watchdog> watchdog;
  if (const std::optional<Duration> interval = startup::WatchdogInterval()) {
    const auto ask = [&](std::function<void()> answered) {
      server.Ask([&broker, answered = std::move(answered)] {
        static_cast<void>(broker.lease_count());
        answered();
      });
    };
    watchdog.emplace(loop, *interval, ask, startup::FeedWatchdog);
  }

  // Without a keeper, what leases hold would end with this image; the next one reads the
  // configuration again; and a driver call that has not returned would hold the exec up.
  startup::Renewal renewal(loop, continuation, [&] {
    return (keeper.link()->connected() || broker.lease_count() == 0) && broker.idle() &&
           startup::LoadSettings(line).ok();
  });
  on_retired = [&](const std::string& why) { renewal.Want(why); };
  const startup::Arrivals arrivals(loop, broker, renewal, settings, *machine, [&] {
    spdlog::info("gpuleased {} serves {} (up to {} connections, {} chunks)", GPULEASE_VERSION,
                 paths.directory, budget->connections, budget->chunks);
    startup::TellReady();
  });
  loop.Run();

  const bool renews = renewal.due() && !stopped;
  if (renews) {
    startup::TellStatus("executing anew: " + renewal.why());
  } else {
    startup::TellStopping();
    spdlog::info("stopping");
  }
  watchdog.reset();
  reception->StopAccepting();
  broker.Stop();
  keeper.Stop();
  const bool calls_ended = server.Shutdown(kCallsEnd);
  if (!renews) peers::RemoveSockets(*endpoint, paths);
  const bool lanes_ended = broker.StopLanes(kLanesEnd);
  if (renews) {
    std::vector<std::string> known = machine->Uuids();
    for (const state::RetiredGpu& gpu : continuation.retired) known.push_back(gpu.uuid);
    renewal.SetRetired(broker.retired(), known);
    return Fail(startup::ContinueAs(arguments, *endpoint, renewal.next()));
  }
  if (!lanes_ended || !calls_ended) {
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

  startup::CommandLine line;
  if (const std::optional<int> done = startup::ParseCommandLine(argc, argv, line)) return *done;
  if (line.probe) return startup::RunProbe(*line.probe);
  const Result<settings::Settings> settings = startup::LoadSettings(line);
  if (!settings.ok()) return Fail(settings.error(), kBadConfiguration);
  spdlog::set_level(spdlog::level::from_str(settings->log_level));
  const Result<RuntimePaths> paths = ResolveRuntimePaths(line.runtime_dir);
  if (!paths.ok()) return Fail(paths.error(), 2);
  if (line.check_config) {
    std::printf("%s: ok\n", line.config.empty() ? "defaults" : line.config.c_str());
    return EXIT_SUCCESS;
  }
  return Run(argv, line, *settings, *paths);
}

}  // namespace
}  // namespace gpulease

int main(int argc, char** argv) { return gpulease::Main(argc, argv); }
