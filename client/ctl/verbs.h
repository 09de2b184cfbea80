// SPDX-License-Identifier: Apache-2.0
//
// What each verb does: ask the daemon, print the answer.
#pragma once

#include <istream>
#include <ostream>

#include "client/ctl/exit_code.h"
#include "client/ctl/verb_table.h"

namespace gpulease::ctl {

// Where a verb reads and writes. Data goes to `out`, messages to `messages`.
struct Terminal {
  std::istream& in;
  std::ostream& out;
  std::ostream& messages;
  bool can_ask = false;  // a person is at `in` and sees `messages`
  bool colour = false;
};

ExitCode Run(const Invocation& invocation, const Terminal& terminal);

// "gpuleasectl: sentence", and below it what its details say.
void PrintError(const Error& error, std::ostream& messages);

}  // namespace gpulease::ctl
