// SPDX-License-Identifier: Apache-2.0
//
// KeeperWatch: the daemon's side of its keeper's life. At start it takes what the keeper holds;
// later it notices when the keeper is gone, and fills the next one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/broker/broker.h"
#include "daemon/peers/event_loop.h"
#include "daemon/state/keeper_link.h"

namespace gpulease::startup {

// On the loop's thread.
class KeeperWatch {
 public:
  struct Found {
    std::vector<state::Kept> kept;
    // The daemon died again and again with these: have them all quarantined.
    bool aside = false;
    // Of the life that is gone on with, or a new one.
    std::array<std::uint8_t, 16> instance{};
    std::vector<state::RetiredGpu> retired;
  };

  KeeperWatch(peers::EventLoop& loop, std::string socket, std::string version);

  const std::shared_ptr<state::KeeperLink>& link() const { return link_; }
  // Connects and takes everything. Where there is no keeper, that is logged and nothing is found.
  Found Take();
  // Restores what was found, tells the log, and watches from here on.
  void Start(broker::Broker& broker, Found found);
  // The daemon ends in good order: what it leaves is fit to be taken up.
  void Stop();

 private:
  void Watch();
  void OnTimer();
  void OnReadable();
  void Lose();

  peers::EventLoop& loop_;
  const std::string socket_;
  const std::string version_;
  const std::shared_ptr<state::KeeperLink> link_ = std::make_shared<state::KeeperLink>();
  broker::Broker* broker_ = nullptr;
  peers::EventLoop::Source readable_;
  peers::EventLoop::Source timer_;
  Time settled_at_ = kNever;
  Duration pause_ = std::chrono::seconds(1);  // before the next look for a keeper
  std::string told_;                          // what the log has last been told is wrong
};

}  // namespace gpulease::startup
