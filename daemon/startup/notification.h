// SPDX-License-Identifier: Apache-2.0
//
// What the service manager is told (sd_notify(3)). Without one, nothing happens.
#pragma once

#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"

namespace gpulease::startup {

// How long the service manager is asked to be patient each time; it is asked far more often.
inline constexpr Duration kPatience = std::chrono::seconds(60);

void TellReady(const std::string& status = "serving");
// What the next TellReady ends.
void TellReloading();
void TellStatus(const std::string& status);
void TellStopping();
// The daemon has not ended its start within what was said before, and is at it still.
void AskForPatience();

// While it exists: `what` is being done on a thread that may be in the driver for minutes, and the
// service manager is kept from taking that for a hang.
class LongStep {
 public:
  explicit LongStep(std::string what);
  ~LongStep();
  LongStep(const LongStep&) = delete;
  LongStep& operator=(const LongStep&) = delete;

 private:
  void Run();

  const std::string what_;
  Mutex mutex_;
  Condition wake_;
  bool over_ GPULEASE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gpulease::startup
