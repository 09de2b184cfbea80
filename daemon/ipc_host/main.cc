// SPDX-License-Identifier: Apache-2.0
//
// gpulease-ipc-host: has the memory of one GPU that programs open by 64-byte CUDA IPC handles. This
// file reads the command line and leaves the daemon behind.
#include <getopt.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "daemon/ipc_host/host.h"

namespace gpulease::ipc {
namespace {

constexpr char kUsage[] =
    "Usage: gpulease-ipc-host --gpu UUID --socket PATH [--simulated DIR]\n"
    "\n"
    "Has the memory of one GPU that is leased with 64-byte CUDA IPC handles, and a CUDA context "
    "for\n"
    "it. gpuleased starts it, with the socket on which it listens as standard input, when it "
    "needs\n"
    "one; it ends by itself when nobody has such memory any more. To kill it is to take that "
    "memory\n"
    "away from all who use it.\n";

void Log(const std::string& line) { std::fprintf(stderr, "gpulease-ipc-host: %s\n", line.c_str()); }

// Nothing: the program is to end with `exit_code`.
std::optional<Host::Options> ParseArguments(int argc, char** argv, int& exit_code) {
  enum { kGpu = 1, kSocket, kSimulated, kVersionOption, kHelp };
  constexpr option kOptions[] = {{"gpu", required_argument, nullptr, kGpu},
                                 {"socket", required_argument, nullptr, kSocket},
                                 {"simulated", required_argument, nullptr, kSimulated},
                                 {"version", no_argument, nullptr, kVersionOption},
                                 {"help", no_argument, nullptr, kHelp},
                                 {}};
  Host::Options options;
  exit_code = 2;
  for (int found; (found = getopt_long(argc, argv, "h", kOptions, nullptr)) != -1;) {
    switch (found) {
      case kGpu:
        options.gpu = optarg;
        break;
      case kSocket:
        options.socket = optarg;
        break;
      case kSimulated:
        options.driver.simulated_directory = optarg;
        break;
      case kVersionOption:
        std::puts("gpulease-ipc-host " GPULEASE_VERSION);
        exit_code = EXIT_SUCCESS;
        return std::nullopt;
      case kHelp:
      case 'h':
        std::fputs(kUsage, stdout);
        exit_code = EXIT_SUCCESS;
        return std::nullopt;
      default:
        std::fputs(kUsage, stderr);
        return std::nullopt;
    }
  }
  if (optind < argc || options.gpu.empty() || options.socket.empty()) {
    std::fputs(kUsage, stderr);
    return std::nullopt;
  }
  return options;
}

bool Listens(int fd) {
  int listens = 0;
  socklen_t size = sizeof listens;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
}

int Main(int argc, char** argv) {
  int exit_code = 0;
  std::optional<Host::Options> options = ParseArguments(argc, argv, exit_code);
  if (!options) return exit_code;
  if (!Listens(STDIN_FILENO)) {
    Log("standard input is no listening socket: it is gpuleased that starts this program");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  // The daemon waits for the end of the program that it started, and has no child that outlives it.
  const pid_t child = fork();
  if (child < 0) {
    Log("fork failed: the machine has no room for another process");
    return EXIT_FAILURE;
  }
  if (child > 0) _exit(EXIT_SUCCESS);
  setsid();
  if (chdir("/") != 0) return EXIT_FAILURE;
  close_range(STDERR_FILENO + 1, ~0u, 0);
  Host host(*std::move(options), UniqueFd(STDIN_FILENO));
  host.Run();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace gpulease::ipc

int main(int argc, char** argv) { return gpulease::ipc::Main(argc, argv); }
