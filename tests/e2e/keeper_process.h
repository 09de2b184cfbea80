// SPDX-License-Identifier: Apache-2.0
//
// KeeperProcess: the real gpulease-keeper beside a DaemonProcess.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>

#include "tests/e2e/daemon_process.h"

namespace gpulease::e2e {

// Threads: one.
class KeeperProcess {
 public:
  // Starts it and waits until it listens in `runtime_dir`, which it makes where it is missing.
  explicit KeeperProcess(std::string runtime_dir, int away_seconds = 60);
  ~KeeperProcess();
  KeeperProcess(const KeeperProcess&) = delete;
  KeeperProcess& operator=(const KeeperProcess&) = delete;

  void Start();
  void Kill();
  // SIGTERM, and waits: its exit code.
  int Stop();
  // SIGHUP, and waits until the new program says that it goes on.
  void Upgrade();

  pid_t pid() const { return pid_; }
  std::string log() const;
  std::size_t open_descriptors() const;

 private:
  const std::string runtime_dir_;
  const int away_seconds_;
  TemporaryDirectory folder_;
  pid_t pid_ = -1;
};

}  // namespace gpulease::e2e
