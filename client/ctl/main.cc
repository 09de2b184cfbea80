// SPDX-License-Identifier: Apache-2.0
//
// gpuleasectl: shows and administers gpuleased.
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "client/ctl/command_line.h"
#include "client/ctl/verbs.h"

int main(int argc, char** argv) {
  using gpulease::ctl::ExitCode;
  // What the gRPC runtime would write beside our own message.
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const auto invocation = gpulease::ctl::ParseCommandLine(argc, argv);
  if (!invocation.ok()) {
    std::cerr << gpulease::ctl::kProgram << ": " << invocation.error().message
              << "\nTry: gpuleasectl --help\n";
    return static_cast<int>(ExitCode::kUsage);
  }
  const char* const no_colour = std::getenv("NO_COLOR");
  const gpulease::ctl::Terminal terminal{
      .in = std::cin,
      .out = std::cout,
      .messages = std::cerr,
      .can_ask = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1,
      .colour = ::isatty(STDOUT_FILENO) == 1 && (no_colour == nullptr || no_colour[0] == '\0')};
  const ExitCode code = gpulease::ctl::Run(*invocation, terminal);
  if (!std::cout.flush()) {
    std::cerr << gpulease::ctl::kProgram << ": the output could not be written\n";
    return static_cast<int>(ExitCode::kFailed);
  }
  return static_cast<int>(code);
}
