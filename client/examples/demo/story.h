// SPDX-License-Identifier: Apache-2.0
//
// Story: what the demo shows, and checks: four processes pass buffers around a ring by name, one is
// killed in the middle of a copy, and its memory comes back while the others go on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/playground/private_daemon.h"
#include "client/playground/worker.h"
#include "gpulease/gpulease.h"

namespace gpulease::demo {

class Story {
 public:
  // On the GPUs of that daemon, for as long as it lives.
  explicit Story(const playground::PrivateDaemon& daemon);

  // Whether every byte was right and all memory came back. Prints. Throws std::exception when
  // something does not work at all.
  bool Tell();

 private:
  void Introduce();
  void Lease();
  void GoRound();
  void Kill();
  void GoOn();
  void Finish();

  // Sends `command` to each of `members`, all at the same time, then waits for all answers.
  std::vector<std::vector<std::string>> AskAll(const std::vector<int>& members,
                                               const std::string& command);
  // As AskAll for "verify own <which> <origin>", each member with its origin; prints and counts.
  void VerifyAll(const std::vector<int>& members, int which, const std::vector<int>& origins,
                 const std::vector<int>& sources,
                 const std::vector<std::vector<std::string>>& copies);
  void Show(const std::vector<std::string>& arguments);
  const GpuStatus& GpuOf(int member) const;  // as it was at the start
  GpuStatus Now(const std::string& uuid);

  const playground::PrivateDaemon& daemon_;
  Client client_;
  std::vector<GpuStatus> gpus_;  // those that can be leased from
  const std::uint64_t size_;     // of each buffer
  std::vector<playground::Worker> workers_;
  bool right_ = true;
};

}  // namespace gpulease::demo
