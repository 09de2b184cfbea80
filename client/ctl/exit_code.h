// SPDX-License-Identifier: Apache-2.0
//
// How gpuleasectl ends: one number for each thing that a script would do next.
#pragma once

#include <string_view>

#include "base/result.h"

namespace gpulease::ctl {

enum class ExitCode : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kNoPermission = 4,
  kNoAnswer = 7,
  kTryAgain = 75,  // EX_TEMPFAIL of sysexits.h
};

struct ExitMeaning {
  ExitCode code;
  std::string_view meaning;
};

inline constexpr ExitMeaning kExitMeanings[] = {
    {ExitCode::kOk, "done"},
    {ExitCode::kFailed, "failed: the message says why"},
    {ExitCode::kUsage, "the command line is wrong"},
    {ExitCode::kNoPermission, "not allowed"},
    {ExitCode::kNoAnswer, "the daemon does not answer"},
    {ExitCode::kTryAgain, "not now: try again later"},
};

inline ExitCode ExitCodeOf(const Error& error) {
  switch (error.code) {
    case Code::kOk:
      return ExitCode::kOk;
    case Code::kPermissionDenied:
      return ExitCode::kNoPermission;
    case Code::kDeadlineExceeded:
      return ExitCode::kNoAnswer;
    case Code::kUnavailable:
      // The daemon gives a reason; a connection that broke has none.
      return error.reason == Reason::kUnspecified ? ExitCode::kNoAnswer : ExitCode::kTryAgain;
    case Code::kResourceExhausted:
    case Code::kAborted:
    case Code::kUnauthenticated:  // the daemon lost sight of this connection: a new one will do
      return ExitCode::kTryAgain;
    default:
      return ExitCode::kFailed;
  }
}

}  // namespace gpulease::ctl
