// SPDX-License-Identifier: Apache-2.0
//
// Reads a command line by the verb table.
#pragma once

#include "base/result.h"
#include "client/ctl/verb_table.h"

namespace gpulease::ctl {

// Errors: kInvalidArgument: the message says what is wrong with the command line.
Result<Invocation> ParseCommandLine(int argc, const char* const* argv);

}  // namespace gpulease::ctl
