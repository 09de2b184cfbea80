// SPDX-License-Identifier: Apache-2.0
//
// gpulease-bench: measures gpulease, and in the same run what nothing could do without. On the
// machine's GPUs, or on simulated ones where there are none.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "client/bench/bench.h"
#include "client/bench/grpc_floor.h"
#include "client/bench/hardware.h"
#include "client/bench/peer.h"
#include "client/playground/interruption.h"
#include "client/playground/private_daemon.h"

namespace gpulease::bench {
namespace {

struct CommandLine {
  bool json = false;
  bool quick = false;
  std::string filter;
  std::string simulate;
  std::string runtime_dir;
  // Of workers:
  std::string worker;
  std::string simulated_directory;
  std::string gpu;
  std::string grpc_socket;
};

struct Section {
  const char* name;
  void (*measure)(Bench& bench);
};
constexpr Section kSections[] = {{"latency", MeasureLatency}, {"elastic", MeasureElastic},
                                 {"grants", MeasureGrants},   {"death", MeasureDeath},
                                 {"barrier", MeasureBarrier}, {"bandwidth", MeasureBandwidth}};

int RunWorker(const CommandLine& line) {
  if (line.worker == "peer") return RunPeer(line.runtime_dir, line.simulated_directory, line.gpu);
  if (line.worker == "swarm") return RunSwarm(line.runtime_dir, line.gpu);
  if (line.worker == "victim") {
    return RunVictim(line.runtime_dir, line.simulated_directory, line.gpu);
  }
  if (line.worker == "party") return RunParty(line.runtime_dir);
  if (line.worker == "grpc-server") return RunGrpcServer(line.grpc_socket);
  if (line.worker == "grpc-client") return RunGrpcClient(line.grpc_socket);
  return 2;
}

void Measure(const CommandLine& line) {
  const playground::TemporaryDirectory directory("gpulease-bench-");
  std::optional<playground::PrivateDaemon> daemon;
  Bench bench;
  bench.quick = line.quick;
  bench.grpc_socket = directory.path() + "/floor.sock";
  bench.runtime_dir = line.runtime_dir;
  if (line.runtime_dir.empty()) {
    daemon.emplace("gpulease-bench-", line.simulate, "2x16GiB");
    bench.runtime_dir = daemon->runtime_dir();
  }
  ClientOptions options = OptionsOf(bench.runtime_dir, "bench");
  options.use_cuda = false;
  bench.node = Client(options).Node();
  bench.simulated_directory = playground::SimulatedDirectory(bench.node, bench.runtime_dir);
  const auto usable = std::find_if(bench.node.gpus.begin(), bench.node.gpus.end(),
                                   [](const GpuStatus& gpu) { return gpu.ready; });
  if (usable == bench.node.gpus.end()) throw std::runtime_error("the daemon has no GPU to lease");
  bench.gpu = *usable;
  DescribeHardware(bench);
  for (const Section& section : kSections) {
    if (std::string_view(section.name).find(line.filter) == std::string_view::npos) continue;
    std::fprintf(stderr, "measuring %s\n", section.name);
    try {
      section.measure(bench);
    } catch (const playground::Interrupted&) {
      throw;
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string(section.name) + ": " + error.what() +
                               (daemon ? "\nthe daemon said last:\n" + daemon->LastLines() : ""));
    }
  }
  line.json ? bench.report.PrintJson(std::cout) : bench.report.PrintText(std::cout);
}

int Main(int argc, char** argv) {
  CommandLine line;
  CLI::App app(
      "Measures gpulease against what nothing could do without, on a daemon of its own. Sections: "
      "latency, grants, death, barrier, bandwidth",
      "gpulease-bench");
  app.add_flag("--json", line.json, "print JSON");
  app.add_flag("--quick", line.quick, "fewer rounds: under a minute");
  app.add_option("--filter", line.filter, "measure the sections with this in their name alone")
      ->type_name("TEXT");
  app.add_option("--simulate", line.simulate,
                 "use simulated GPUs, even where there are real ones: 2x16GiB")
      ->type_name("SPEC");
  app.add_option("--runtime-dir", line.runtime_dir, "measure the daemon that serves this directory")
      ->type_name("DIR");
  for (auto& [name, value] : {std::pair<const char*, std::string*>{"--worker", &line.worker},
                              {"--simulated-directory", &line.simulated_directory},
                              {"--gpu", &line.gpu},
                              {"--grpc-socket", &line.grpc_socket}}) {
    app.add_option(name, *value)->group("");  // of the processes that it starts itself
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : 2;
  }
  if (!line.worker.empty()) return RunWorker(line);
  playground::HoldSignals();
  try {
    Measure(line);
    return EXIT_SUCCESS;
  } catch (const playground::Interrupted& interrupted) {
    std::fprintf(stderr, "gpulease-bench: %s\n", interrupted.what());
    return 128 + interrupted.signal();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpulease-bench: %s\n", error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace
}  // namespace gpulease::bench

int main(int argc, char** argv) { return gpulease::bench::Main(argc, argv); }
