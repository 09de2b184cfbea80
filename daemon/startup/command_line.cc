// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace gpulease::startup {

std::optional<int> ParseCommandLine(int argc, char** argv, CommandLine& line) {
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
  // The daemon's own: not in the help.
  app.add_option("--probe", line.probe, "print the GPUs that the driver shows")->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : 2;
  }
  return std::nullopt;
}

Result<settings::Settings> LoadSettings(const CommandLine& line) {
  settings::Settings settings;
  if (!line.config.empty()) {
    Result<settings::Settings> loaded = settings::LoadSettings(line.config);
    if (!loaded.ok()) return std::move(loaded).error();
    settings = std::move(*loaded);
  }
  if (!line.simulate.empty()) settings.simulate = line.simulate;
  return settings;
}

}  // namespace gpulease::startup
