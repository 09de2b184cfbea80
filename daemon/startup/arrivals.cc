// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/arrivals.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/startup/notification.h"

namespace gpulease::startup {
namespace {

// A look costs a process and a cuInit (0.2 to 0.4 s for each GPU, H200): the longer it has been in
// vain, the rarer.
constexpr Duration kShortestPause = std::chrono::seconds(1);
constexpr Duration kLongestPause = std::chrono::seconds(30);
constexpr Duration kSlowAnswer = std::chrono::seconds(10);

std::string Seconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(duration).count()) + " s";
}

}  // namespace

Arrivals::Arrivals(peers::EventLoop& loop, broker::Broker& broker, Renewal& renewal,
                   const settings::Settings& settings, const Machine& machine,
                   std::function<void()> ready)
    : broker_(broker),
      renewal_(renewal),
      settings_(settings),
      ready_(std::move(ready)),
      began_(BootClock::now()),
      probe_(loop, machine.simulated_directory) {
  timer_ = loop.MakeTimer([this] { Look(); });
  if (machine.no_driver && WantsDriver(settings_)) {
    stage_ = Stage::kDriver;
    absentees_ = AbsenteesOf({});
    Explain("waiting for the driver: " + machine.no_driver->message);
    Arm();
    return;
  }
  absentees_ = AbsenteesOf(machine.Uuids());
  if (absentees_.none() || renewal_.next().waited || settings_.gpu_wait == Duration::zero()) {
    Serve();
    return;
  }
  stage_ = Stage::kGpus;
  Explain("waiting for " + absentees_.Text() + ", at most " + Seconds(settings_.gpu_wait));
  Arm();
}

Absentees Arrivals::AbsenteesOf(const std::vector<std::string>& shown) const {
  std::vector<std::string> present = shown;
  for (const state::RetiredGpu& gpu : renewal_.next().retired) present.push_back(gpu.uuid);
  return FindAbsentees(settings_, present);
}

bool Arrivals::WaitedEnough() const {
  return BootClock::now() - (driver_came_ ? *driver_came_ : began_) >= settings_.gpu_wait;
}

void Arrivals::Arm() {
  const Time now = BootClock::now();
  const Duration pause = std::clamp((now - began_) / 8, kShortestPause, kLongestPause);
  peers::EventLoop::SetTimer(timer_,
                             After(now, stage_ == Stage::kServing ? pause : kShortestPause));
}

void Arrivals::Look() {
  if (stage_ != Stage::kServing) AskForPatience();
  if (!probe_.running()) {
    probe_.Start([this](const ProbeResult& answer) { OnAnswer(answer); });
  } else if (const Duration asked = BootClock::now() - probe_.since();
             asked > kSlowAnswer && stage_ != Stage::kServing) {
    Explain("waiting for the driver: cuInit does not return");
    if (stage_ == Stage::kGpus && WaitedEnough()) Serve();
  }
  Arm();
}

void Arrivals::OnAnswer(const ProbeResult& answer) {
  if (renewal_.wanted()) return;
  switch (stage_) {
    case Stage::kDriver:
      return OnDriverAnswer(answer);
    case Stage::kGpus:
      return OnGpusAnswer(answer);
    case Stage::kServing:
      return OnLateAnswer(answer);
  }
}

void Arrivals::OnDriverAnswer(const ProbeResult& answer) {
  if (!answer.ok()) {
    driver_came_.reset();
    return Explain("waiting for the driver: " + answer.error().message);
  }
  absentees_ = AbsenteesOf(*answer);
  if (!driver_came_) driver_came_ = BootClock::now();
  if (absentees_.none() || WaitedEnough()) {
    renewal_.next().waited = true;
    return renewal_.Want("the driver is there");
  }
  Explain("waiting for " + absentees_.Text() + ", at most " + Seconds(settings_.gpu_wait));
}

void Arrivals::OnGpusAnswer(const ProbeResult& answer) {
  const Absentees left = answer.ok() ? AbsenteesOf(*answer) : absentees_;
  if (left.none() || (left != absentees_ && WaitedEnough())) {
    renewal_.next().waited = true;
    return renewal_.Want("GPUs that were missing are there");
  }
  if (WaitedEnough()) Serve();
}

void Arrivals::OnLateAnswer(const ProbeResult& answer) {
  if (!answer.ok()) return;
  const Absentees left = AbsenteesOf(*answer);
  if (left.uuids.size() >= absentees_.uuids.size() && left.unnamed >= absentees_.unnamed) return;
  std::string came;
  for (const std::string& uuid : absentees_.uuids) {
    if (std::find(left.uuids.begin(), left.uuids.end(), uuid) == left.uuids.end())
      came += (came.empty() ? "" : ", ") + uuid;
  }
  ShowAbsentees("it is there, and is adopted once no lease is held");
  renewal_.next().waited = true;
  renewal_.Want((came.empty() ? "a GPU that was missing" : came) + " is there");
}

void Arrivals::Serve() {
  stage_ = Stage::kServing;
  began_ = BootClock::now();
  broker_.KeepOut(std::nullopt);
  ShowAbsentees("expected, and not shown by the driver; it is adopted when it comes");
  if (!absentees_.none()) {
    spdlog::warn("{} missing: the others are served", absentees_.Text());
    Arm();
  }
  ready_();
}

void Arrivals::ShowAbsentees(const std::string& note) {
  std::vector<broker::AbsentGpu> absent;
  for (const std::string& uuid : absentees_.uuids)
    absent.push_back({uuid, broker::GpuState::kMissing, note});
  for (std::uint32_t i = 0; i < absentees_.unnamed; ++i)
    absent.push_back({"", broker::GpuState::kMissing, note});
  for (const auto& [uuid, lost] : renewal_.next().retired) {
    absent.push_back({uuid, lost ? broker::GpuState::kLost : broker::GpuState::kDrained,
                      std::string(lost ? "lost, with all leases on it; closed" : "closed") +
                          ", and safe to reset; gpuleasectl undrain adopts it again"});
  }
  broker_.ShowMissing(std::move(absent));
}

void Arrivals::Explain(const std::string& why) {
  ShowAbsentees("expected, and not there yet");
  if (why == explained_) return;
  explained_ = why;
  spdlog::warn("{}", why);
  TellStatus(why);
  AskForPatience();
  broker_.KeepOut(MakeError(Code::kUnavailable, Reason::kGpuUnavailable, "the daemon is " + why));
}

}  // namespace gpulease::startup
