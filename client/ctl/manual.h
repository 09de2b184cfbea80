// SPDX-License-Identifier: Apache-2.0
//
// What gpuleasectl says about itself: help, man page and shell completion, made from the verb
// table.
#pragma once

#include <string>
#include <string_view>

#include "client/ctl/verb_table.h"

namespace gpulease::ctl {

// Of the program, or of `verb` when it is one.
std::string HelpText(const VerbSpec* verb);
// gpuleasectl(1) in roff.
std::string ManPage(std::string_view version);
// A script for bash.
std::string BashCompletion();

}  // namespace gpulease::ctl
