// SPDX-License-Identifier: Apache-2.0
//
// PrivateDaemon: a gpuleased of one's own, in a directory that nobody else sees, to try or measure
// something on. It is the program that lies beside the running one, and is stopped and removed with
// this object.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/playground/process.h"
#include "client/playground/temporary_directory.h"
#include "gpulease/gpulease.h"

namespace gpulease::playground {

class PrivateDaemon {
 public:
  // With the machine's GPUs, or with simulated ones where it has none; always with simulated ones
  // when `simulate` ("2x16GiB") is not empty. Throws std::runtime_error with the daemon's own last
  // lines, and Interrupted.
  explicit PrivateDaemon(const std::string& prefix, const std::string& simulate,
                         const std::string& simulate_without_gpu);
  PrivateDaemon(const PrivateDaemon&) = delete;
  PrivateDaemon& operator=(const PrivateDaemon&) = delete;
  ~PrivateDaemon();

  const std::string& runtime_dir() const { return directory_.path(); }
  const NodeStatus& node() const { return node_; }  // as it was at the start
  std::string LastLines() const;                    // of what it has said

 private:
  void Start(const std::string& simulate);
  void Stop() noexcept;

  TemporaryDirectory directory_;
  Process process_;
  NodeStatus node_;
};

// The driver of a daemon's GPUs, as a process that drives them itself loads it: empty for real
// ones, else the simulated node's directory.
std::string SimulatedDirectory(const NodeStatus& node, const std::string& runtime_dir);

// What `gpuleasectl --runtime-dir <dir> <arguments>` prints. Throws std::runtime_error when it
// fails, with what it said.
std::string Ctl(const std::string& runtime_dir, const std::vector<std::string>& arguments);

}  // namespace gpulease::playground
