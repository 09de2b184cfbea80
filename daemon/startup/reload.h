// SPDX-License-Identifier: Apache-2.0
//
// Reload: the configuration read again while the daemon serves, all of it or nothing.
//
// A file with a mistake changes nothing. What cannot change while the daemon runs is named, and
// takes effect at the next start.
#pragma once

#include <string>
#include <vector>

#include "daemon/broker/broker.h"
#include "daemon/peers/reception.h"
#include "daemon/settings/settings.h"
#include "daemon/startup/command_line.h"
#include "daemon/startup/membership.h"

namespace gpulease::startup {

// The options in which two settings differ, by their names in the file.
struct Difference {
  std::vector<std::string> now;   // that may change while the daemon runs
  std::vector<std::string> next;  // that take effect at the next start
};
Difference Compare(const settings::Settings& before, const settings::Settings& after);

// What the settings mean for pools of these kinds.
ledger::Terms TermsOf(const settings::Settings& settings, const std::vector<broker::Pool>& pools,
                      const std::shared_ptr<const Membership>& membership);

// Threads: the loop's.
class Reload {
 public:
  // The others outlive it.
  Reload(CommandLine line, settings::Settings settings, CurrentMembership& membership,
         broker::Broker& broker, peers::Reception& reception)
      : line_(std::move(line)),
        settings_(std::move(settings)),
        membership_(membership),
        broker_(broker),
        reception_(reception) {}

  // Reads the file again and says what came of it, to the log and to the service manager.
  void Run();

 private:
  // What to say. Errors: a mistake in the file; nothing has changed then.
  Result<std::string> Apply();

  const CommandLine line_;
  settings::Settings settings_;
  CurrentMembership& membership_;
  broker::Broker& broker_;
  peers::Reception& reception_;
};

}  // namespace gpulease::startup
