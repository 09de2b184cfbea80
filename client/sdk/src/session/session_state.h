// SPDX-License-Identifier: Apache-2.0
//
// What a Session keeps behind its pointers.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "client/sdk/src/session/session.h"

namespace gpulease {
inline namespace abi_v1 {

struct Session::State {
  struct Ending {
    std::uint64_t lease_id;
    bool release;
  };

  // Releases or closes; true when the daemon answered, whatever it said.
  bool End(const Link& over, std::uint64_t lease_id, bool release, Deadline deadline);

  std::mutex connecting;  // one reconnects at a time; taken before mutex
  std::mutex mutex;
  // under mutex
  Link link;
  std::vector<Ending> postponed;
};

struct Session::Events {
  std::mutex mutex;
  // under mutex
  LocalFd notify;  // an eventfd: something was read by whichever thread
  LocalFd poller;  // an epoll of notify and the connection
  int watched = -1;
  std::shared_ptr<Channel> channel;  // that the stream is on
  std::unique_ptr<Channel::Stream> stream;
  bool began = false;  // there was a stream before
  bool lost = false;   // events may be missing: say so first
};

}  // namespace abi_v1
}  // namespace gpulease
