// SPDX-License-Identifier: Apache-2.0
//
// Arrivals: waits for the driver and for the GPUs that are expected, says what is missing, and has
// what comes late adopted.
//
// Without the driver the daemon waits, however long; for a GPU that is missing beside others it
// waits `gpu_wait`, and then serves the others. Meanwhile it answers, and admits nobody.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/broker/broker.h"
#include "daemon/peers/event_loop.h"
#include "daemon/settings/settings.h"
#include "daemon/startup/driver_probe.h"
#include "daemon/startup/expectation.h"
#include "daemon/startup/machine.h"
#include "daemon/startup/renewal.h"

namespace gpulease::startup {

// Threads: the loop's.
class Arrivals {
 public:
  // `ready` is called once, when the daemon serves: from the constructor where nothing is missing.
  Arrivals(peers::EventLoop& loop, broker::Broker& broker, Renewal& renewal,
           const settings::Settings& settings, const Machine& machine, std::function<void()> ready);

 private:
  enum class Stage { kDriver, kGpus, kServing };

  void Look();
  void OnAnswer(const ProbeResult& answer);
  void OnDriverAnswer(const ProbeResult& answer);
  void OnGpusAnswer(const ProbeResult& answer);
  void OnLateAnswer(const ProbeResult& answer);
  void Serve();
  Absentees AbsenteesOf(const std::vector<std::string>& shown) const;
  bool WaitedEnough() const;
  void Arm();
  // Says why the daemon does not serve yet.
  void Explain(const std::string& why);
  // Shows what is missing, with `note`, and what is retired.
  void ShowAbsentees(const std::string& note);

  broker::Broker& broker_;
  Renewal& renewal_;
  const settings::Settings settings_;
  const std::function<void()> ready_;
  Stage stage_ = Stage::kServing;
  Absentees absentees_;
  Time began_;                       // this stage
  std::optional<Time> driver_came_;  // kDriver: it shows some of the GPUs since
  std::string explained_;
  DriverProbe probe_;
  peers::EventLoop::Source timer_;
};

}  // namespace gpulease::startup
