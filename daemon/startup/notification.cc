// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/notification.h"

#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cstdint>
#include <ctime>

namespace gpulease::startup {
namespace {

constexpr Duration kTick = std::chrono::seconds(5);

std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string Patience() {
  return "EXTEND_TIMEOUT_USEC=" +
         std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(kPatience).count());
}

}  // namespace

void TellReady(const std::string& status) {
  sd_notify(0, ("READY=1\nSTATUS=" + OneLine(status)).c_str());
}
void TellReloading() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const auto microseconds =
      std::uint64_t(now.tv_sec) * 1'000'000 + std::uint64_t(now.tv_nsec) / 1000;
  sd_notify(0, ("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(microseconds) +
                "\nSTATUS=reading the configuration")
                   .c_str());
}
void TellStatus(const std::string& status) { sd_notify(0, ("STATUS=" + OneLine(status)).c_str()); }
void TellStopping() { sd_notify(0, "STOPPING=1\nSTATUS=stopping"); }
void AskForPatience() { sd_notify(0, Patience().c_str()); }

LongStep::LongStep(std::string what) : what_(std::move(what)), thread_([this] { Run(); }) {}

LongStep::~LongStep() {
  {
    MutexLock lock(mutex_);
    over_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

void LongStep::Run() {
  const Time start = BootClock::now();
  MutexLock lock(mutex_);
  while (!over_) {
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(BootClock::now() - start).count();
    // A later image of a daemon that was ready before is under its watchdog already.
    sd_notify(0, (Patience() + "\nWATCHDOG=1\nSTATUS=" + OneLine(what_) +
                  (seconds == 0 ? "" : " for " + std::to_string(seconds) + " s"))
                     .c_str());
    wake_.WaitFor(mutex_, kTick);
  }
}

}  // namespace gpulease::startup
