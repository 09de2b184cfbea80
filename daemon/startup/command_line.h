// SPDX-License-Identifier: Apache-2.0
//
// CommandLine: what gpuleased was asked to do.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "daemon/settings/settings.h"

namespace gpulease::startup {

struct CommandLine {
  std::string config;
  std::string simulate;
  std::string runtime_dir;
  bool check_config = false;
  std::optional<std::string> probe;  // see RunProbe
};

// The exit code where there is nothing more to do: help, version, a mistake; all of them printed.
std::optional<int> ParseCommandLine(int argc, char** argv, CommandLine& line);

// The configuration file, if one was named, and what the command line says over it.
// Errors: those of settings::LoadSettings.
Result<settings::Settings> LoadSettings(const CommandLine& line);

}  // namespace gpulease::startup
