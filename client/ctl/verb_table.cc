// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/verb_table.h"

#include <algorithm>

namespace gpulease::ctl {

std::span<const VerbSpec> Verbs() {
  static const std::vector<VerbSpec> verbs = {
      {"status",
       "",
       "the daemon, its GPUs, host memory and tenants, and what needs attention",
       "The default. For each GPU: how much is leased, offered (being handed over), releasing (let "
       "go, not yet shown as free by the driver), unconfirmed (as releasing, for too long), "
       "quarantined (rights have ended, a living process may still map it), used outside the "
       "daemon, and free. What needs attention comes last, each line with a '!'.",
       {}},
      {"gpus",
       "",
       "the GPUs and where their memory is",
       "As status has them, with the full UUIDs that requests name.",
       {}},
      {"leases",
       "",
       "the leases that you own, hold or may open; for operators and administrators, all",
       "",
       {{"--gpu", "UUID", "only those on this GPU", {}, &Invocation::gpu, nullptr},
        {"--user", "NAME|UID", "only those of this user", {}, &Invocation::user, nullptr},
        {"--orphans",
         "",
         "only those that outlived their owner",
         {},
         nullptr,
         &Invocation::orphans}}},
      {"budget",
       "",
       "what may still be leased, by you, and what would make room",
       "For each GPU and NUMA node: the largest lease that would be granted now, what your user "
       "has "
       "there, and what is left of the tenant's limit. From the daemon's books: no GPU is touched.",
       {}},
      {"advise",
       "[USAGE]",
       "which memory is right for what",
       "The table by which the daemon fills in a request that names a usage.",
       {}},
      {"sessions",
       "",
       "the processes that are connected: yours; for operators and administrators, all",
       "",
       {}},
      {"show",
       "NAME|ID",
       "everything about one lease",
       "Who holds it and how, and, while it is queued, who holds the memory that it waits for. "
       "'weights' is your lease of that name, 'alice/weights' that of alice, 'root@REALM/weights' "
       "that of a container's root; digits alone are an id.",
       {}},
      {"release",
       "NAME|ID",
       "end a lease: one of yours that outlived its owner; administrators, any",
       "Its name is free at once. Its holders are told to let go, and the memory is free when the "
       "last of them has, or is dead. With --force all their rights end at once; what a living "
       "process still maps is quarantined until it lets go. Asks before it does so; off a terminal "
       "it wants --yes.",
       {{"--force", "", "end every holder's rights at once", {}, nullptr, &Invocation::force},
        {"--yes", "", "do not ask", {}, nullptr, &Invocation::yes},
        {"--dry-run",
         "",
         "say what would be done, and do nothing",
         {},
         nullptr,
         &Invocation::dry_run}}},
      {"drain",
       "GPU",
       "take a GPU out of service (administrators)",
       "No lease is granted on it any more. When its last lease is gone the daemon closes it, and "
       "it "
       "is safe to reset; this is waited for and shown, and goes on in the daemon when the command "
       "is interrupted. With --ask the holders are told to let go, with --force all their rights "
       "end "
       "at once. GPU is a UUID or the beginning of one.",
       {{"--ask", "", "tell the holders to let go", {}, nullptr, &Invocation::ask},
        {"--force", "", "end every holder's rights at once", {}, nullptr, &Invocation::force},
        {"--yes", "", "do not ask", {}, nullptr, &Invocation::yes},
        {"--dry-run",
         "",
         "say what would be done, and do nothing",
         {},
         nullptr,
         &Invocation::dry_run}}},
      {"undrain",
       "GPU",
       "put a drained GPU back into service (administrators)",
       "The daemon adopts it again by its UUID. GPU is a UUID or the beginning of one.",
       {}},
      {"version", "", "the version of gpuleasectl", "", {}},
      {"completion",
       "bash",
       "print a script that completes command lines in this shell",
       "For the shell that runs: source <(gpuleasectl completion bash).",
       {}},
      {"man", "", "print the manual page, in roff", "", {}},
  };
  return verbs;
}

std::span<const OptionSpec> GlobalOptions() {
  static const std::vector<OptionSpec> options = {
      {"--runtime-dir",
       "DIR",
       "where the daemon's sockets are (else $GPULEASE_RUNTIME_DIR, else /run/gpulease)",
       {},
       &Invocation::runtime_dir,
       nullptr},
      {"-o,--output",
       "FORMAT",
       "table for people; json, jsonl (one object a line) for programs",
       {"table", "json", "jsonl"},
       &Invocation::output,
       nullptr},
      {"--no-headers",
       "",
       "tables without headings and totals",
       {},
       nullptr,
       &Invocation::no_headers},
      {"-h,--help", "", "this help; after a verb, that verb's", {}, nullptr, &Invocation::help},
      {"--version", "", "as the verb version", {}, nullptr, &Invocation::version},
  };
  return options;
}

const VerbSpec* FindVerb(std::string_view name) {
  const auto verbs = Verbs();
  const auto found = std::find_if(verbs.begin(), verbs.end(),
                                  [name](const VerbSpec& verb) { return verb.name == name; });
  return found == verbs.end() ? nullptr : &*found;
}

}  // namespace gpulease::ctl
