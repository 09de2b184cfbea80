// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/keeper_watch.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "daemon/state/record.h"

namespace gpulease::startup {
namespace {

// For the keeper to see the end of the daemon before.
constexpr Duration kPatience = std::chrono::seconds(10);
constexpr Duration kPause = std::chrono::milliseconds(50);
constexpr Duration kFirstAnswer = std::chrono::seconds(5);
// One that is started anew answers at once; who waits for one that is stuck keeps everybody
// waiting.
constexpr Duration kAnswer = std::chrono::milliseconds(100);
constexpr Duration kLookAgain = std::chrono::seconds(1);
constexpr Duration kCheckAgain = std::chrono::seconds(5);
// With this many lives in a row that did not last kSettles, it is what they took up that kills
// them.
constexpr std::uint32_t kTooManyTakes = 3;
constexpr Duration kSettles = std::chrono::seconds(5);

}  // namespace

KeeperWatch::KeeperWatch(peers::EventLoop& loop, std::string socket, std::string version)
    : loop_(loop), socket_(std::move(socket)), version_(std::move(version)) {}

KeeperWatch::Found KeeperWatch::Take() {
  Found found;
  GPULEASE_CHECK(getrandom(&found.instance, sizeof found.instance, 0) == sizeof found.instance,
                 "getrandom");
  const Time until = After(BootClock::now(), kPatience);
  Result<keeper::Welcome> welcome = link_->Connect(socket_, version_, kFirstAnswer);
  while (!welcome.ok() && welcome.error().code == Code::kAborted && BootClock::now() < until) {
    std::this_thread::sleep_for(kPause);
    welcome = link_->Connect(socket_, version_, kFirstAnswer);
  }
  if (!welcome.ok()) {
    told_ = welcome.error().message;
    spdlog::warn("no keeper: leases end with this daemon ({})", told_);
    return found;
  }
  Result<std::vector<state::Kept>> kept = link_->Take();
  if (!kept.ok()) {
    told_ = kept.error().message;
    spdlog::error("the keeper's {} entries were not taken up: {}", welcome->entries, told_);
    return found;
  }
  found.kept = std::move(*kept);
  found.aside = welcome->takes >= kTooManyTakes && !found.kept.empty();
  for (const state::Kept& entry : found.kept) {
    if (static_cast<state::RecordKind>(entry.key >> 56) != state::RecordKind::kNode) continue;
    const Result<state::Record> record = state::Decode(entry.key, entry.entry.record);
    if (!record.ok()) {
      spdlog::error("the keeper's record of the node is set aside: {}", record.error().message);
      continue;
    }
    const auto& node = std::get<state::KeptNode>(*record);
    found.retired = node.retired;
    if (!found.aside) found.instance = node.instance;
  }
  return found;
}

void KeeperWatch::Start(broker::Broker& broker, Found found) {
  broker_ = &broker;
  timer_ = loop_.MakeTimer([this] { OnTimer(); });
  peers::EventLoop::SetTimer(timer_, After(BootClock::now(), kLookAgain));
  if (!link_->connected()) return broker.Start();
  const bool any = !found.kept.empty();
  const bool aside = found.aside;
  if (found.aside) {
    spdlog::error(
        "the daemon ended {} times in a row soon after it took up what its keeper holds: this time "
        "all of it is quarantined, no client goes on with it, and no byte of it is leased; restart "
        "the daemon to try again, or end each with gpuleasectl release ID --force",
        kTooManyTakes);
  }
  const broker::Restored restored = broker.Restore(std::move(found.kept), found.aside);
  for (const std::string& line : restored.broken)
    spdlog::error("set aside with the keeper: {}", line);
  if (!restored.broken.empty()) {
    spdlog::error(
        "{} of the keeper's entries could not be taken up; their memory is kept and not leased; to "
        "let go of it: systemctl restart gpulease-keeper",
        restored.broken.size());
  }
  if (any) {
    spdlog::info("took up {} sessions and {} leases; {} sessions had ended meanwhile",
                 restored.sessions, restored.leases, restored.ended);
  }
  // A life that took nothing up leaves the former one's name in place.
  if (!aside) broker.KeepNode();
  broker.Start();
  settled_at_ = After(BootClock::now(), kSettles);
  Watch();
}

void KeeperWatch::Watch() {
  readable_ =
      loop_.WatchDescriptor(link_->descriptor(), EPOLLIN, [this](std::uint32_t) { OnReadable(); });
}

void KeeperWatch::OnReadable() {
  if (!link_->OnReadable()) Lose();
}

void KeeperWatch::Lose() {
  readable_.reset();
  link_->Drop();
  told_ = link_->why();
  pause_ = kPause;
  spdlog::error("the keeper is gone ({}): until it is back, leases end with this daemon", told_);
  peers::EventLoop::SetTimer(timer_, After(BootClock::now(), pause_));
}

void KeeperWatch::OnTimer() {
  const Time now = BootClock::now();
  // The next keeper is there a few tenths of a second after the last: until it has been told, both
  // must not fall.
  pause_ = std::min(pause_ * 2, kLookAgain);
  peers::EventLoop::SetTimer(timer_, After(now, readable_ ? kCheckAgain : pause_));
  if (readable_) {
    if (!link_->Check(now)) return Lose();
    if (now < settled_at_) return;
    settled_at_ = kNever;
    link_->Settled();
    link_->Flush();
    return;
  }
  const Result<keeper::Welcome> welcome = link_->Connect(socket_, version_, kAnswer);
  if (!welcome.ok()) {
    if (welcome.error().message != told_) {
      told_ = welcome.error().message;
      spdlog::warn("no keeper: leases end with this daemon ({})", told_);
    }
    return;
  }
  told_.clear();
  broker_->Refill();
  Watch();
  spdlog::info("the keeper is there: leases outlive this daemon");
}

void KeeperWatch::Stop() {
  if (!link_->connected()) return;
  link_->Settled();
  link_->Flush();
}

}  // namespace gpulease::startup
