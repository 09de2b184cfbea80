// SPDX-License-Identifier: Apache-2.0
//
// gpulease-keeper: holds what the daemon leased, while the daemon is away. This file reads the
// command line, listens, and replaces the program by its newer version when it is told to.
#include <getopt.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "base/runtime_dir.h"
#include "base/unix_listener.h"
#include "daemon/keeper/keeper.h"

namespace gpulease::keeper {
namespace {

constexpr char kUsage[] =
    "Usage: gpulease-keeper [--runtime-dir DIR] [--away-seconds SECONDS]\n"
    "\n"
    "Holds the memory that gpuleased leased, and who has it, while the daemon is away: over its\n"
    "restart, its upgrade, its crash.\n"
    "\n"
    "  --runtime-dir DIR       where keeper.sock is (default: $GPULEASE_RUNTIME_DIR, else\n"
    "                          /run/gpulease)\n"
    "  --away-seconds SECONDS  how long the daemon may be away before all memory goes back: 1 to\n"
    "                          86400 (default: 60)\n"
    "  --version               print the version and end\n"
    "\n"
    "SIGHUP starts the installed program anew without letting go of anything; SIGTERM lets go.\n";

struct CommandLine {
  std::string runtime_dir;
  long away_seconds = 60;
  int packed = -1;  // what the former program left, by --packed
};

void Log(const std::string& line) { std::fprintf(stderr, "gpulease-keeper: %s\n", line.c_str()); }

int Fail(const Error& error) {
  Log(error.message);
  return EXIT_FAILURE;
}

// The number `text` from 0 to `most`, or -1.
long Number(const char* text, long most) {
  char* end = nullptr;
  errno = 0;
  const long number = std::strtol(text, &end, 10);
  return errno == 0 && end != text && *end == '\0' && number >= 0 && number <= most ? number : -1;
}

// Nothing: the program is to end with `exit_code`.
std::optional<CommandLine> ParseArguments(int argc, char** argv, int& exit_code) {
  enum { kRuntimeDir = 1, kAway, kPacked, kVersionOption, kHelp };
  constexpr option kOptions[] = {{"runtime-dir", required_argument, nullptr, kRuntimeDir},
                                 {"away-seconds", required_argument, nullptr, kAway},
                                 {"packed", required_argument, nullptr, kPacked},
                                 {"version", no_argument, nullptr, kVersionOption},
                                 {"help", no_argument, nullptr, kHelp},
                                 {}};
  CommandLine line;
  exit_code = 2;
  for (int found; (found = getopt_long(argc, argv, "h", kOptions, nullptr)) != -1;) {
    switch (found) {
      case kRuntimeDir:
        line.runtime_dir = optarg;
        break;
      case kAway:
        line.away_seconds = Number(optarg, 86'400);
        if (line.away_seconds < 1) {
          Log("--away-seconds " + std::string(optarg) + ": 1 to 86400 seconds");
          return std::nullopt;
        }
        break;
      case kPacked:
        line.packed = static_cast<int>(Number(optarg, 1 << 30));
        break;
      case kVersionOption:
        std::puts("gpulease-keeper " GPULEASE_VERSION);
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
  if (optind < argc) {
    Log("unexpected argument " + std::string(argv[optind]));
    return std::nullopt;
  }
  return line;
}

// The whole of what it may have: it holds as many descriptors as the daemon.
void RaiseDescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Becomes the program that is installed now. Returns only when that fails.
Error Replace(Keeper& keeper, const CommandLine& line, const std::string& program) {
  keeper.Drain();
  Result<UniqueFd> packed = keeper.shelf().Pack(keeper.listener(), keeper.connection());
  if (!packed.ok()) return packed.error();
  std::vector<std::string> words = {program, "--packed", std::to_string(packed->get()),
                                    "--away-seconds", std::to_string(line.away_seconds)};
  if (!line.runtime_dir.empty()) {
    words.emplace_back("--runtime-dir");
    words.push_back(line.runtime_dir);
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  Error error = ErrnoError("exec " + program, errno);
  keeper.shelf().KeepFromExec(keeper.listener(), keeper.connection());
  return error;
}

// Where this program was started from; an upgrade puts the new one there.
std::string ProgramPath() {
  std::string path(4096, '\0');
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  path.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  constexpr std::string_view kReplaced = " (deleted)";
  if (path.ends_with(kReplaced)) path.resize(path.size() - kReplaced.size());
  return path;
}

int Run(const CommandLine& line) {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&watched, number);
  sigprocmask(SIG_BLOCK, &watched, nullptr);  // before the first thread
  const UniqueFd signals(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return Fail(ErrnoError("signalfd", errno));
  RaiseDescriptorLimit();

  const std::string program = ProgramPath();
  Keeper::Options options;
  options.away_bound = std::chrono::seconds(line.away_seconds);
  options.version = GPULEASE_VERSION;
  options.log = Log;
  options.status = [](const std::string& text) { sd_notify(0, ("STATUS=" + text).c_str()); };

  std::optional<Keeper> keeper;
  if (line.packed >= 0) {
    Result<Unpacked> unpacked = Unpack(UniqueFd(line.packed));
    if (!unpacked.ok()) return Fail(unpacked.error());
    keeper.emplace(std::move(options), std::move(*unpacked));
    Log("version " GPULEASE_VERSION " goes on with " +
        std::to_string(keeper->shelf().entries.size()) + " entries");
  } else {
    const Result<RuntimePaths> paths = ResolveRuntimePaths(line.runtime_dir);
    if (!paths.ok()) return Fail(paths.error());
    if (const Status ready = PrepareRuntimeDirectory(paths->directory); !ready.ok())
      return Fail(ready.error());
    Result<UniqueFd> listener = ListenUnix(paths->keeper_socket, SOCK_SEQPACKET, 0600);
    if (!listener.ok()) return Fail(listener.error());
    keeper.emplace(std::move(options), std::move(*listener));
  }
  sd_notify(0, "READY=1");
  for (;;) {
    keeper->Run(signals.get());
    signalfd_siginfo received{};
    if (read(signals.get(), &received, sizeof received) != sizeof received) continue;
    if (received.ssi_signo != SIGHUP) break;
    sd_notify(0, "RELOADING=1");
    Log(Replace(*keeper, line, program).message);
    sd_notify(0, "READY=1");
  }
  sd_notify(0, "STOPPING=1");
  Log("letting go of " + std::to_string(keeper->shelf().entries.size()) + " entries");
  keeper->LetGo();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace gpulease::keeper

int main(int argc, char** argv) {
  int exit_code = 0;
  const auto line = gpulease::keeper::ParseArguments(argc, argv, exit_code);
  return line ? gpulease::keeper::Run(*line) : exit_code;
}
