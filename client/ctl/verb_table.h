// SPDX-License-Identifier: Apache-2.0
//
// The verb table: what gpuleasectl can do, and with which options. The command line's parser, help,
// completion and man page are all made from it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpulease::ctl {

// What one command line asks for.
struct Invocation {
  std::string verb;  // of Verbs()
  std::string argument;
  std::string runtime_dir;
  std::string output = "table";
  std::string gpu;
  std::string user;
  bool no_headers = false;
  bool force = false;
  bool ask = false;
  bool yes = false;
  bool dry_run = false;
  bool orphans = false;
  bool help = false;
  bool version = false;
};

struct OptionSpec {
  std::string names;  // "-o,--output"
  std::string value;  // "FORMAT"; empty: a flag
  std::string summary;
  std::vector<std::string> choices;  // empty: anything
  std::string Invocation::*text = nullptr;
  bool Invocation::*flag = nullptr;
};

struct VerbSpec {
  std::string name;
  std::string argument;  // "NAME|ID"; empty: takes none
  std::string summary;   // one line
  std::string detail;    // sentences for the man page and the verb's own help
  std::vector<OptionSpec> options;
};

std::span<const VerbSpec> Verbs();
std::span<const OptionSpec> GlobalOptions();
// The verb of that name, or nullptr.
const VerbSpec* FindVerb(std::string_view name);

inline constexpr std::string_view kDefaultVerb = "status";
inline constexpr std::string_view kProgram = "gpuleasectl";

}  // namespace gpulease::ctl
