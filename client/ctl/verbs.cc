// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/verbs.h"

#include <pwd.h>

#include <charconv>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/runtime_dir.h"
#include "client/ctl/listing.h"
#include "client/ctl/manual.h"
#include "client/ctl/node_client.h"
#include "client/ctl/status_page.h"
#include "client/ctl/table.h"

namespace gpulease::ctl {
namespace {

TextStyle StyleOf(const Invocation& invocation, const Terminal& terminal) {
  return {.headings = !invocation.no_headers, .colour = terminal.colour};
}

// As the options want it; `totals` in text alone.
void PrintTable(const Table& table, const std::string& totals, const Invocation& invocation,
                const Terminal& terminal) {
  if (invocation.output == "json") {
    PrintJson(table, terminal.out);
  } else if (invocation.output == "jsonl") {
    PrintJsonLines(table, terminal.out);
  } else {
    PrintText(table, StyleOf(invocation, terminal), terminal.out);
    if (!totals.empty() && !invocation.no_headers)
      terminal.out << (table.rows.empty() ? "" : "\n") << totals << "\n";
  }
}

// One run of a verb.
class Command {
 public:
  Command(const Invocation& invocation, const Terminal& terminal, const RuntimePaths& paths,
          NodeClient client)
      : invocation_(invocation), terminal_(terminal), paths_(paths), client_(std::move(client)) {}

  ExitCode Status() {
    const Result<v1::GetNodeResponse> node = client_.GetNode();
    if (!node.ok()) return Fail(node.error());
    if (invocation_.output == "table")
      PrintStatus(*node, StyleOf(invocation_, terminal_), terminal_.out);
    else
      Print(NodeRecord(*node), "");
    return ExitCode::kOk;
  }

  ExitCode Gpus() {
    const Result<v1::GetNodeResponse> node = client_.GetNode();
    if (!node.ok()) return Fail(node.error());
    Print(GpuTable(*node, /*brief=*/false), GpuTotals(*node));
    return ExitCode::kOk;
  }

  ExitCode Leases() {
    LeaseFilter filter{.gpu_uuid = invocation_.gpu, .uid = {}, .orphans = invocation_.orphans};
    if (!invocation_.user.empty()) {
      filter.uid = UserId(invocation_.user);
      if (!filter.uid)
        return Fail(MakeError(Code::kNotFound, Reason::kUnspecified,
                              "no user is called '" + invocation_.user + "' on this machine"));
    }
    const Result<std::vector<v1::Lease>> leases = client_.ListLeases(filter);
    if (!leases.ok()) return Fail(leases.error());
    Print(LeaseTable(*leases), LeaseTotals(*leases));
    return ExitCode::kOk;
  }

  ExitCode Budget() {
    const Result<v1::GetBudgetResponse> budget = client_.GetBudget();
    if (!budget.ok()) return Fail(budget.error());
    std::string totals = "charged to tenant " + Printable(budget->tenant()) + "; " +
                         FormatBytes(budget->lasting_bytes()) + " may outlive their owner";
    if (budget->lasting_left_bytes() != ~std::uint64_t{0})
      totals += ", " + FormatBytes(budget->lasting_left_bytes()) + " more may";
    Print(BudgetTable(*budget), totals);
    return ExitCode::kOk;
  }

  ExitCode Sessions() {
    const Result<std::vector<v1::Session>> sessions = client_.ListSessions();
    if (!sessions.ok()) return Fail(sessions.error());
    Print(SessionTable(*sessions), SessionTotals(*sessions));
    return ExitCode::kOk;
  }

  ExitCode Show() {
    const Result<v1::Lease> lease = client_.GetLease(invocation_.argument);
    if (!lease.ok()) return Fail(lease.error());
    Print(LeaseRecord(*lease), "");
    return ExitCode::kOk;
  }

  ExitCode Drain() {
    const Result<v1::Gpu> gpu = FindGpu();
    if (!gpu.ok()) return Fail(gpu.error());
    terminal_.messages << (invocation_.dry_run ? "would drain " : "drains ") << gpu->uuid() << " ("
                       << Printable(gpu->name()) << ", " << gpu->memory().lease_count()
                       << " leases)\n";
    if (invocation_.force)
      terminal_.messages << "  the rights of all who hold them end at once\n";
    else if (invocation_.ask)
      terminal_.messages << "  those who hold them are told to let go\n";
    if (invocation_.dry_run) return ExitCode::kOk;
    if (const std::optional<ExitCode> refused = Refused("drained")) return *refused;
    const Result<v1::DrainResponse> drained =
        client_.Drain(gpu->uuid(), invocation_.force ? v1::DRAIN_MODE_END
                                   : invocation_.ask ? v1::DRAIN_MODE_ASK
                                                     : v1::DRAIN_MODE_WAIT);
    if (!drained.ok()) return Fail(drained.error());
    return Follow(gpu->uuid(), v1::GPU_STATE_DRAINED);
  }

  ExitCode Undrain() {
    const Result<v1::Gpu> gpu = FindGpu();
    if (!gpu.ok()) return Fail(gpu.error());
    const Result<v1::UndrainResponse> undrained = client_.Undrain(gpu->uuid());
    if (!undrained.ok()) return Fail(undrained.error());
    return Follow(gpu->uuid(), v1::GPU_STATE_READY);
  }

  ExitCode Release() {
    const Result<v1::Lease> lease = client_.GetLease(invocation_.argument);
    if (!lease.ok()) return Fail(lease.error());
    Announce(*lease);
    if (invocation_.dry_run) {
      v1::ReleaseResponse as_it_is;
      as_it_is.set_state(lease->state());
      as_it_is.set_holders(static_cast<std::uint32_t>(lease->holders_size()));
      Print(ReleaseRecord(*lease, as_it_is, /*dry_run=*/true), "");
      return ExitCode::kOk;
    }
    if (const std::optional<ExitCode> refused = Refused("released")) return *refused;
    // By id: the name could be another lease's by now.
    const Result<v1::ReleaseResponse> released =
        client_.Release(lease->lease_id(), invocation_.force);
    if (!released.ok()) return Fail(released.error());
    Print(ReleaseRecord(*lease, *released, /*dry_run=*/false), "");
    return ExitCode::kOk;
  }

 private:
  void Print(const Table& table, const std::string& totals) {
    PrintTable(table, totals, invocation_, terminal_);
  }

  ExitCode Fail(const Error& error) {
    PrintError(error, terminal_.messages);
    return ExitCodeOf(error);
  }

  // Says what releasing does, and to whom.
  void Announce(const v1::Lease& lease) {
    std::ostream& messages = terminal_.messages;
    messages << (invocation_.dry_run ? "would release " : "releases ") << Describe(lease) << "\n";
    for (const v1::Holder& holder : lease.holders())
      messages << "  held by pid " << holder.pid() << " (" << Printable(holder.program())
               << ", uid " << holder.uid() << (holder.owner() ? ", the owner" : "") << ")\n";
    if (lease.holders().empty()) return;
    messages << (invocation_.force
                     ? "  all their rights end at once; what they still map is quarantined until "
                       "they let go\n"
                     : "  they are told to let go; the memory is free when the last of them has\n");
  }

  // Why it is not to be done, when nobody confirmed it. `done`: what nothing was.
  std::optional<ExitCode> Refused(const std::string& done) {
    if (invocation_.yes) return std::nullopt;
    if (!terminal_.can_ask) {
      terminal_.messages << kProgram << ": nothing was " << done << ": add --yes\n";
      return ExitCode::kUsage;
    }
    terminal_.messages << "Go on? [y/N] " << std::flush;
    std::string answer;
    std::getline(terminal_.in, answer);
    if (answer == "y" || answer == "Y" || answer == "yes") return std::nullopt;
    return ExitCode::kFailed;
  }

  // The one GPU whose UUID begins with the argument.
  Result<v1::Gpu> FindGpu() {
    const Result<v1::GetNodeResponse> node = client_.GetNode();
    if (!node.ok()) return node.error();
    std::vector<v1::Gpu> found;
    for (const v1::Gpu& gpu : node->gpus()) {
      if (!gpu.uuid().empty() && gpu.uuid().starts_with(invocation_.argument)) found.push_back(gpu);
    }
    if (found.size() == 1) return found.front();
    return MakeError(
        Code::kNotFound, Reason::kUnspecified,
        (found.empty() ? "no GPU's UUID begins with '" : "more than one GPU's UUID begins with '") +
            invocation_.argument + "': gpuleasectl gpus lists them");
  }

  // Shows how the GPU comes to the state, until it has; a daemon that executes itself anew is away
  // for a moment.
  ExitCode Follow(const std::string& uuid, v1::GpuState state) {
    constexpr std::chrono::milliseconds kPause{200};
    constexpr std::chrono::seconds kAway{30};
    std::string told;
    auto answered = std::chrono::steady_clock::now();
    for (;; std::this_thread::sleep_for(kPause)) {
      const Result<v1::GetNodeResponse> node = client_.GetNode();
      const auto now = std::chrono::steady_clock::now();
      if (!node.ok()) {
        const Code code = node.error().code;
        if ((code != Code::kUnavailable && code != Code::kCancelled) || now - answered > kAway)
          return Fail(node.error());
        if (Result<NodeClient> anew = NodeClient::Connect(paths_); anew.ok())
          client_ = std::move(anew).value();
        continue;
      }
      answered = now;
      for (const v1::Gpu& gpu : node->gpus()) {
        if (gpu.uuid() != uuid) continue;
        const bool closed = gpu.memory().total_bytes() == 0;
        if (gpu.state() == state && (state != v1::GPU_STATE_DRAINED || closed)) {
          Print(GpuTable(*node, /*brief=*/false), "");
          terminal_.messages << uuid
                             << (closed ? " is drained: safe to reset\n" : " is in service\n");
          return ExitCode::kOk;
        }
        std::string line = uuid + ": " + std::to_string(gpu.memory().lease_count()) +
                           " leases left, " + Printable(gpu.message());
        if (line == told) continue;
        told = std::move(line);
        terminal_.messages << told << "\n" << std::flush;
      }
    }
  }

  static std::optional<std::uint32_t> UserId(const std::string& text) {
    std::uint32_t uid = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, uid);
    if (error == std::errc() && rest == end) return uid;
    const passwd* user = ::getpwnam(text.c_str());
    if (user == nullptr) return std::nullopt;
    return user->pw_uid;
  }

  const Invocation& invocation_;
  const Terminal& terminal_;
  const RuntimePaths& paths_;
  NodeClient client_;
};

// Of the verbs that need no daemon.
std::optional<ExitCode> RunAlone(const Invocation& invocation, const Terminal& terminal) {
  if (invocation.help) {
    terminal.out << HelpText(FindVerb(invocation.verb));
  } else if (invocation.version || invocation.verb == "version") {
    terminal.out << kProgram << " " << GPULEASE_VERSION << "\n";
  } else if (invocation.verb == "man") {
    terminal.out << ManPage(GPULEASE_VERSION);
  } else if (invocation.verb == "advise") {
    const Table advice = AdviceTable(invocation.argument);
    if (advice.rows.empty()) {
      terminal.messages << kProgram << ": no usage is called '" << invocation.argument
                        << "': see gpuleasectl advise\n";
      return ExitCode::kUsage;
    }
    PrintTable(advice, "", invocation, terminal);
  } else if (invocation.verb == "completion") {
    if (invocation.argument != "bash") {
      terminal.messages << kProgram << ": completion is for bash alone\n";
      return ExitCode::kUsage;
    }
    terminal.out << BashCompletion();
  } else {
    return std::nullopt;
  }
  return ExitCode::kOk;
}

}  // namespace

void PrintError(const Error& error, std::ostream& messages) {
  messages << kProgram << ": "
           << (error.message.empty() ? std::string(CodeName(error.code)) : Printable(error.message))
           << "\n";
  if (error.requested_bytes > 0 || error.available_bytes > 0) {
    messages << "  asked for " << FormatBytes(error.requested_bytes) << ", "
             << FormatBytes(error.available_bytes) << " available";
    if (error.limit_bytes > 0) messages << ", limit " << FormatBytes(error.limit_bytes);
    messages << "\n";
  }
  for (const Blocker& blocker : error.blockers) {
    messages << "  lease " << blocker.lease_id << " holds " << FormatBytes(blocker.size_bytes);
    if (blocker.pid != 0) messages << ", pid " << blocker.pid << ", uid " << blocker.uid;
    messages << "\n";
  }
}

ExitCode Run(const Invocation& invocation, const Terminal& terminal) {
  if (const std::optional<ExitCode> done = RunAlone(invocation, terminal)) return *done;
  const Result<RuntimePaths> paths = ResolveRuntimePaths(invocation.runtime_dir);
  if (!paths.ok()) {
    PrintError(paths.error(), terminal.messages);
    return ExitCode::kUsage;
  }
  Result<NodeClient> client = NodeClient::Connect(*paths);
  if (!client.ok()) {
    PrintError(client.error(), terminal.messages);
    return ExitCodeOf(client.error());
  }
  Command command(invocation, terminal, *paths, std::move(client).value());
  if (invocation.verb == "gpus") return command.Gpus();
  if (invocation.verb == "leases") return command.Leases();
  if (invocation.verb == "budget") return command.Budget();
  if (invocation.verb == "sessions") return command.Sessions();
  if (invocation.verb == "show") return command.Show();
  if (invocation.verb == "release") return command.Release();
  if (invocation.verb == "drain") return command.Drain();
  if (invocation.verb == "undrain") return command.Undrain();
  return command.Status();
}

}  // namespace gpulease::ctl
