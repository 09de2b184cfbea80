// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/renewal.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace gpulease::startup {
namespace {

constexpr Duration kTryAgain = std::chrono::milliseconds(250);

}  // namespace

Renewal::Renewal(peers::EventLoop& loop, Continuation next, std::function<bool()> harmless)
    : loop_(loop), next_(std::move(next)), harmless_(std::move(harmless)) {
  timer_ = loop_.MakeTimer([this] { Try(); });
}

void Renewal::Want(const std::string& why) {
  const bool first = !wanted();
  why_ = why;
  Try();
  if (first && !due_) {
    spdlog::info("{}: the daemon executes itself anew for that, once no lease is held", why_);
  }
}

void Renewal::SetRetired(std::vector<state::RetiredGpu> retired,
                         const std::vector<std::string>& known) {
  next_.retired = std::move(retired);
  next_.served.clear();
  for (const std::string& uuid : known) {
    if (std::none_of(next_.retired.begin(), next_.retired.end(),
                     [&](const auto& gpu) { return gpu.uuid == uuid; }))
      next_.served.push_back(uuid);
  }
}

void Renewal::Try() {
  if (due_) return;
  if (!harmless_()) {
    peers::EventLoop::SetTimer(timer_, After(BootClock::now(), kTryAgain));
    return;
  }
  due_ = true;
  spdlog::info("{}: executing anew", why_);
  loop_.Exit();
}

}  // namespace gpulease::startup
