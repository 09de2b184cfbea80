// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/verbs.h"

#include <pwd.h>

#include <charconv>
#include <string>
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

// One run of a verb.
class Command {
 public:
  Command(const Invocation& invocation, const Terminal& terminal, NodeClient client)
      : invocation_(invocation), terminal_(terminal), client_(std::move(client)) {}

  ExitCode Status() {
    const Result<v1::GetNodeResponse> node = client_.GetNode();
    if (!node.ok()) return Fail(node.error());
    if (invocation_.output == "table")
      PrintStatus(*node, Style(), terminal_.out);
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
    LeaseFilter filter{.gpu_uuid = invocation_.gpu, .uid = {}};
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
    if (!invocation_.yes) {
      if (!terminal_.can_ask) {
        terminal_.messages << kProgram << ": nothing was released: add --yes\n";
        return ExitCode::kUsage;
      }
      if (!Confirmed()) return ExitCode::kFailed;
    }
    // By id: the name could be another lease's by now.
    const Result<v1::ReleaseResponse> released =
        client_.Release(lease->lease_id(), invocation_.force);
    if (!released.ok()) return Fail(released.error());
    Print(ReleaseRecord(*lease, *released, /*dry_run=*/false), "");
    return ExitCode::kOk;
  }

 private:
  TextStyle Style() const {
    return {.headings = !invocation_.no_headers, .colour = terminal_.colour};
  }

  void Print(const Table& table, const std::string& totals) {
    if (invocation_.output == "json") {
      PrintJson(table, terminal_.out);
    } else if (invocation_.output == "jsonl") {
      PrintJsonLines(table, terminal_.out);
    } else {
      PrintText(table, Style(), terminal_.out);
      if (!totals.empty() && !invocation_.no_headers)
        terminal_.out << (table.rows.empty() ? "" : "\n") << totals << "\n";
    }
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

  bool Confirmed() {
    terminal_.messages << "Release it? [y/N] " << std::flush;
    std::string answer;
    std::getline(terminal_.in, answer);
    return answer == "y" || answer == "Y" || answer == "yes";
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
  Command command(invocation, terminal, std::move(client).value());
  if (invocation.verb == "gpus") return command.Gpus();
  if (invocation.verb == "leases") return command.Leases();
  if (invocation.verb == "sessions") return command.Sessions();
  if (invocation.verb == "show") return command.Show();
  if (invocation.verb == "release") return command.Release();
  return command.Status();
}

}  // namespace gpulease::ctl
