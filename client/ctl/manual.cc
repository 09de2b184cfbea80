// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/manual.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/usage_hint.h"
#include "client/ctl/exit_code.h"

namespace gpulease::ctl {
namespace {

std::vector<std::string> Split(const std::string& names) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  for (std::size_t comma = names.find(','); comma != std::string::npos;
       comma = names.find(',', from)) {
    parts.push_back(names.substr(from, comma - from));
    from = comma + 1;
  }
  parts.push_back(names.substr(from));
  return parts;
}

std::string Joined(const std::vector<std::string>& parts, std::string_view between) {
  std::string all;
  for (const std::string& part : parts) {
    if (!all.empty()) all += between;
    all += part;
  }
  return all;
}

// "-o, --output FORMAT"
std::string OptionSynopsis(const OptionSpec& option) {
  std::string text = Joined(Split(option.names), ", ");
  if (!option.value.empty()) text += " " + option.value;
  return text;
}

std::string VerbSynopsis(const VerbSpec& verb) {
  return verb.argument.empty() ? verb.name : verb.name + " " + verb.argument;
}

// "  left      right" lines with the right sides in one column.
class TwoColumns {
 public:
  void Add(std::string left, std::string right) {
    width_ = std::max(width_, left.size());
    lines_.emplace_back(std::move(left), std::move(right));
  }
  std::string Text() const {
    std::string text;
    for (const auto& [left, right] : lines_)
      text += "  " + left + std::string(width_ - left.size() + 2, ' ') + right + "\n";
    return text;
  }

 private:
  std::size_t width_ = 0;
  std::vector<std::pair<std::string, std::string>> lines_;
};

std::string OptionLines(std::span<const OptionSpec> options) {
  TwoColumns lines;
  for (const OptionSpec& option : options) lines.Add(OptionSynopsis(option), option.summary);
  return lines.Text();
}

// `text` in lines of at most 78 characters.
std::string Filled(const std::string& text) {
  std::string filled;
  std::size_t column = 0;
  std::size_t from = 0;
  while (from < text.size()) {
    const std::size_t space = std::min(text.find(' ', from), text.size());
    const std::size_t length = space - from;
    if (column > 0 && column + 1 + length > 78) {
      filled += "\n";
      column = 0;
    }
    if (column > 0) {
      filled += " ";
      ++column;
    }
    filled.append(text, from, length);
    column += length;
    from = space + 1;
  }
  return filled;
}

// A summary as a sentence of its own.
std::string Sentence(std::string summary) {
  summary[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(summary[0])));
  return summary + ".";
}

// Text for roff: hyphens that can be copied, no line taken for a request.
std::string Roff(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (c == '\\')
      escaped += "\\e";
    else if (c == '"')
      escaped += "\\(dq";
    else if (c == '-')
      escaped += "\\-";
    else if ((c == '.' || c == '\'') && (escaped.empty() || escaped.back() == '\n'))
      escaped += std::string("\\&") + c;
    else
      escaped += c;
  }
  return escaped;
}

std::string RoffOptions(std::span<const OptionSpec> options) {
  std::string page;
  for (const OptionSpec& option : options) {
    page += ".TP\n.BR " + Roff(Joined(Split(option.names), " \", \" "));
    if (!option.value.empty()) page += " \" \\fI" + Roff(option.value) + "\\fR\"";
    page += "\n" + Roff(option.summary) + "\n";
  }
  return page;
}

struct Meaning {
  std::string_view what;
  std::string_view meaning;
};

constexpr Meaning kEnvironment[] = {
    {"GPULEASE_RUNTIME_DIR", "where the daemon's sockets are, unless --runtime-dir says so"},
    {"NO_COLOR", "when set, no colours on a terminal"},
};

constexpr Meaning kExamples[] = {
    {"gpuleasectl", "How the node is."},
    {"gpuleasectl show alice/weights", "Who holds alice's lease of that name."},
    {"gpuleasectl leases -o json | jq '.[] | select(.state == \"quarantined\") | .lease_id'",
     "Leases that living processes hold on to."},
    {"gpuleasectl release 17 --dry-run", "What would releasing it do?"},
};

// Ids of leases, and their names with the owner before them; names hold nothing that bash expands.
constexpr std::string_view kLeaseWords =
    "$(gpuleasectl --no-headers leases 2>/dev/null | "
    "awk '{print $1; if ($2 != \"-\") print $3 \"/\" $2}')";

}  // namespace

std::string HelpText(const VerbSpec* verb) {
  const std::string program(kProgram);
  if (verb != nullptr) {
    std::string text = "Usage: " + program + " [OPTIONS] " + VerbSynopsis(*verb) +
                       (verb->options.empty() ? "" : " [OPTIONS]") + "\n\n" +
                       Sentence(verb->summary) + "\n";
    if (!verb->detail.empty()) text += "\n" + Filled(verb->detail) + "\n";
    if (!verb->options.empty()) text += "\nOptions:\n" + OptionLines(verb->options);
    return text + "\nOptions of all verbs:\n" + OptionLines(GlobalOptions());
  }
  TwoColumns verbs;
  for (const VerbSpec& each : Verbs()) verbs.Add(VerbSynopsis(each), each.summary);
  TwoColumns exits;
  for (const ExitMeaning& exit : kExitMeanings)
    exits.Add(std::to_string(static_cast<int>(exit.code)), std::string(exit.meaning));
  return "Usage: " + program +
         " [OPTIONS] [VERB]\n\nShows and administers gpuleased, which leases " +
         "GPU memory to processes.\n\nVerbs (" + std::string(kDefaultVerb) +
         " when none is given):\n" + verbs.Text() + "\nOptions:\n" + OptionLines(GlobalOptions()) +
         "\nExit status:\n" + exits.Text();
}

std::string ManPage(std::string_view version) {
  const std::string program(kProgram);
  std::string page = ".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Printed by `" + program +
                     " man`.\n.TH GPULEASECTL 1 \"\" \"gpulease " + std::string(version) +
                     "\" \"User Commands\"\n.SH NAME\n" + program +
                     " \\- show and administer gpuleased, which leases GPU memory to processes\n"
                     ".SH SYNOPSIS\n.B " +
                     program +
                     "\n[\\fIOPTIONS\\fR] [\\fIVERB\\fR]\n"
                     ".SH DESCRIPTION\n" +
                     Roff(
                         "Data goes to the standard output, messages to the standard error. JSON "
                         "has the field names of the gRPC API (gpulease/v1/*.proto); amounts of "
                         "memory are numbers of bytes, times milliseconds, states small words.") +
                     "\n.SH VERBS\n";
  for (const VerbSpec& verb : Verbs()) {
    page += ".TP\n.B " + Roff(verb.name);
    if (!verb.argument.empty()) page += " \\fI" + Roff(verb.argument) + "\\fR";
    page += "\n" + Roff(Sentence(verb.summary)) + "\n";
    if (!verb.detail.empty()) page += Roff(verb.detail) + "\n";
    if (!verb.options.empty()) page += ".RS\n" + RoffOptions(verb.options) + ".RE\n";
  }
  page += ".SH OPTIONS\n" + RoffOptions(GlobalOptions()) + ".SH EXIT STATUS\n";
  for (const ExitMeaning& exit : kExitMeanings)
    page +=
        ".TP\n.B " + std::to_string(static_cast<int>(exit.code)) + "\n" + Roff(exit.meaning) + "\n";
  page += ".SH ENVIRONMENT\n";
  for (const Meaning& variable : kEnvironment)
    page += ".TP\n.B " + Roff(variable.what) + "\n" + Roff(variable.meaning) + "\n";
  page += ".SH USAGES\nWhich memory is right for what; requests may name one.\n";
  for (const UsageAdvice& advice : kUsageAdvice) {
    page += ".TP\n.B " + Roff(advice.name) + "\n" + Roff(advice.purpose) + ": " +
            (advice.host ? "pinned host memory " : "GPU memory ") + Roff(advice.placement) + "; " +
            Roff(advice.reason) + ".\n";
  }
  page +=
      ".SH FILES\n.TP\n.I /run/gpulease/gpulease.sock\nthe daemon's gRPC socket\n.SH EXAMPLES\n";
  for (const Meaning& example : kExamples)
    page += ".TP\n.B " + Roff(example.what) + "\n" + Roff(example.meaning) + "\n";
  return page + ".SH SEE ALSO\n.BR systemctl (1)\n";
}

std::string BashCompletion() {
  std::string verbs;
  std::string cases;
  for (const VerbSpec& verb : Verbs()) {
    verbs += (verbs.empty() ? "" : " ") + verb.name;
    std::string words;
    for (const OptionSpec& option : verb.options)
      words += (words.empty() ? "" : " ") + Joined(Split(option.names), " ");
    if (!words.empty() && !verb.argument.empty()) words += " ";
    if (verb.argument == "NAME|ID")
      words += kLeaseWords;
    else if (verb.argument == "[USAGE]")
      for (const UsageAdvice& advice : kUsageAdvice)
        words += (words.empty() ? "" : " ") + std::string(advice.name);
    else if (!verb.argument.empty())
      words += verb.argument;
    if (!words.empty()) cases += "    " + verb.name + ") words+=\" " + words + "\" ;;\n";
  }
  std::string options;
  std::string values;
  for (const OptionSpec& option : GlobalOptions()) {
    const std::string names = Joined(Split(option.names), " ");
    options += (options.empty() ? "" : " ") + names;
    if (option.value.empty()) continue;
    values += "    " + Joined(Split(option.names), "|") + ")\n      mapfile -t COMPREPLY < <(" +
              (option.choices.empty()
                   ? std::string("compgen -d -- \"$word\"")
                   : "compgen -W \"" + Joined(option.choices, " ") + "\" -- \"$word\"") +
              ")\n      return\n      ;;\n";
  }
  return "# SPDX-License-Identifier: Apache-2.0\n# Printed by `gpuleasectl completion bash`.\n"
         "_gpuleasectl() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} verb='' "
         "each\n"
         "  local verbs=\"" +
         verbs +
         "\"\n"
         "  local words=\"" +
         options +
         "\"\n"
         "  case $before in\n" +
         values +
         "  esac\n"
         "  for each in \"${COMP_WORDS[@]:1:COMP_CWORD - 1}\"; do\n"
         "    case \" $verbs \" in\n"
         "      *\" $each \"*) verb=$each && break ;;\n"
         "    esac\n"
         "  done\n"
         "  case $verb in\n"
         "    '') words+=\" $verbs\" ;;\n" +
         cases +
         "  esac\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
         "}\n"
         "complete -F _gpuleasectl gpuleasectl\n";
}

}  // namespace gpulease::ctl
