// SPDX-License-Identifier: Apache-2.0
//
// DaemonProcess: the real gpuleased, serving simulated GPUs in a directory of its own, for as long
// as a test needs it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "driver/simulated/simulated.h"
#include "tests/e2e/container.h"

namespace gpulease::e2e {

// A program of the build tree: "gpuleased".
std::string BuiltProgram(const std::string& name);

// A fresh directory under /tmp that others may enter; removed with all that is in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Of a process, as long as it runs.
std::size_t OpenDescriptors(pid_t pid);

// What a program left behind.
struct Ended {
  int exit_code = -1;  // -1: by a signal, or it had to be killed
  std::string output;  // both streams
};
// Runs a program to its end, which must come within `patience`.
Ended RunProgram(const std::vector<std::string>& arguments,
                 std::chrono::milliseconds patience = std::chrono::seconds(30));

struct DaemonOptions {
  std::string simulate = "2x1GiB";
  std::string config;                         // text of a configuration file; empty: none
  std::optional<std::uint32_t> uid;           // runs as this user (as root only)
  std::optional<std::uint32_t> open_files;    // RLIMIT_NOFILE, soft and hard
  std::string runtime_dir;                    // empty: one of its own
  std::optional<ContainerOptions> container;  // it runs in one
  bool await_ready = true;
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<int> sockets;              // listening ones that it gets as a service manager's
};

// Threads: one.
class DaemonProcess {
 public:
  // Starts it and waits until it says READY to its service manager; ends the test's program with
  // the daemon's log when that does not come.
  explicit DaemonProcess(DaemonOptions options = {});
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // Starts it again in the same directory.
  void Start();
  // All that it has said to its service manager since Start, a message a line or more.
  const std::string& notifications();
  // Whether it says `text` within `patience`; said before counts.
  bool AwaitNotification(const std::string& text,
                         std::chrono::milliseconds patience = std::chrono::seconds(20));
  // Writes the configuration file anew.
  void WriteConfig(const std::string& text) const;
  void Signal(int signal) const;
  // Asks it to end. What it exits with, or -1 when it did not end in time, or by a signal.
  int Stop(std::chrono::milliseconds bound = std::chrono::seconds(2));
  void Terminate();  // SIGTERM, and returns at once
  // The exit code, -1 when there is none within `bound`.
  int AwaitEnd(std::chrono::milliseconds bound);
  void Kill();

  const std::string& runtime_dir() const { return runtime_dir_; }
  const std::string& folder() const { return folder_.path(); }  // its own, around runtime_dir
  std::string grpc_socket() const { return runtime_dir_ + "/gpulease.sock"; }
  std::string handle_socket() const { return runtime_dir_ + "/handles.sock"; }
  simulated::Node node() const;
  std::string log() const;
  pid_t pid() const { return pid_; }
  bool running();

  std::size_t open_descriptors() const;
  // As many as stay for a while: what is closed in the background is closed.
  std::size_t settled_descriptors() const;
  Bytes resident_bytes() const;
  std::int64_t cpu_ticks() const;  // of 10 ms

 private:
  const DaemonOptions options_;
  TemporaryDirectory folder_;
  std::string runtime_dir_;
  UniqueFd notify_;
  std::string notifications_;
  pid_t pid_ = -1;
};

}  // namespace gpulease::e2e
