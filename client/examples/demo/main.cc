// SPDX-License-Identifier: Apache-2.0
//
// gpulease-demo: a daemon of its own and four processes that use it, on the machine's GPUs or on
// simulated ones; ends by itself. Exits with 1 when a byte was wrong or memory did not come back.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "client/examples/demo/ring_worker.h"
#include "client/examples/demo/story.h"
#include "client/playground/interruption.h"
#include "client/playground/private_daemon.h"

namespace gpulease::demo {
namespace {

int Tell(const std::string& simulate) {
  playground::HoldSignals();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::optional<playground::PrivateDaemon> daemon;
  try {
    daemon.emplace("gpulease-demo-", simulate, "2x16GiB");
    return Story(*daemon).Tell() ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const playground::Interrupted& interrupted) {
    std::fprintf(stderr, "gpulease-demo: %s\n", interrupted.what());
    return 128 + interrupted.signal();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpulease-demo: %s\n", error.what());
    if (daemon) std::fprintf(stderr, "the daemon said last:\n%s", daemon->LastLines().c_str());
    return EXIT_FAILURE;
  }
}

int Main(int argc, char** argv) {
  std::string simulate;
  std::string runtime_dir;
  int worker = -1;
  CLI::App app(
      "Shows gpulease at work: a private daemon, and four processes that share memory by name",
      "gpulease-demo");
  app.add_option("--simulate", simulate,
                 "use simulated GPUs, even where there are real ones: 2x16GiB")
      ->type_name("SPEC");
  app.add_option("--worker", worker)->group("");  // one of the four; the demo starts them itself
  app.add_option("--runtime-dir", runtime_dir)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : 2;
  }
  return worker >= 0 ? RingWorker::Run(worker, runtime_dir) : Tell(simulate);
}

}  // namespace
}  // namespace gpulease::demo

int main(int argc, char** argv) { return gpulease::demo::Main(argc, argv); }
