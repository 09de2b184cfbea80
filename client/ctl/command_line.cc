// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/command_line.h"

#include <CLI/CLI.hpp>

namespace gpulease::ctl {
namespace {

void AddOptions(CLI::App& app, std::span<const OptionSpec> options, Invocation& invocation) {
  for (const OptionSpec& spec : options) {
    if (spec.flag != nullptr) {
      app.add_flag(spec.names, invocation.*spec.flag);
      continue;
    }
    CLI::Option* option = app.add_option(spec.names, invocation.*spec.text);
    option->type_name(spec.value);
    if (!spec.choices.empty()) option->check(CLI::IsMember(spec.choices));
  }
}

Error Usage(const std::string& message) {
  return MakeError(Code::kInvalidArgument, Reason::kUnspecified, message);
}

}  // namespace

Result<Invocation> ParseCommandLine(int argc, const char* const* argv) {
  Invocation invocation;
  CLI::App app;
  app.set_help_flag();  // the verb table's help, not CLI11's
  AddOptions(app, GlobalOptions(), invocation);
  app.require_subcommand(0, 1);
  for (const VerbSpec& verb : Verbs()) {
    CLI::App* sub = app.add_subcommand(verb.name);
    sub->set_help_flag();
    sub->fallthrough();  // options for all verbs may stand after the verb
    AddOptions(*sub, verb.options, invocation);
    if (!verb.argument.empty()) sub->add_option("argument", invocation.argument);
    sub->callback([&invocation, &verb] { invocation.verb = verb.name; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return Usage(error.what());
  }
  const VerbSpec* verb = FindVerb(invocation.verb.empty() ? kDefaultVerb : invocation.verb);
  if (invocation.help || invocation.version) return invocation;
  invocation.verb = verb->name;
  // "[USAGE]" may be left out.
  if (!verb->argument.empty() && verb->argument.front() != '[' && invocation.argument.empty())
    return Usage(verb->name + " wants " + verb->argument);
  return invocation;
}

}  // namespace gpulease::ctl
