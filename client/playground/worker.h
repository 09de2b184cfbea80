// SPDX-License-Identifier: Apache-2.0
//
// Worker and Leader: two ends of one socket between a program and another process of itself. The
// leader asks, one line at a time; the worker answers each, with descriptors where it has some.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "client/playground/process.h"

namespace gpulease::playground {

struct Message {
  std::string text;
  std::vector<UniqueFd> descriptors;
};

// "copy 3" as "copy" and {"3"}.
std::vector<std::string> Words(std::string_view text);

// The leader's end: a process of this very program, run with `arguments`.
class Worker {
 public:
  // `title` names it in errors.
  Worker(std::string title, const std::vector<std::string>& arguments);

  void Send(std::string_view text);
  // The answer to what was sent. Throws std::runtime_error when the worker says that it failed, is
  // dead, or is silent for `timeout`; and Interrupted.
  Message Receive(std::chrono::milliseconds timeout = std::chrono::seconds(30));
  Message Ask(std::string_view text);

  // Without any of the checks above, for loops that measure.
  int socket() const { return socket_.get(); }
  Process& process() { return process_; }
  const std::string& title() const { return title_; }

 private:
  std::string title_;
  UniqueFd socket_;
  Process process_;
};

// The worker's end.
class Leader {
 public:
  Leader();
  // Nothing when the leader is gone.
  std::optional<Message> Next();
  void Answer(std::string_view text, std::span<const int> descriptors = {});
  // Answers each line by what `work` returns for its words, until the leader is gone; what it
  // throws is the answer too. The process's exit code.
  int Serve(const std::function<std::string(const std::vector<std::string>&)>& work);
  int socket() const { return socket_.get(); }

 private:
  UniqueFd socket_;
};

}  // namespace gpulease::playground
