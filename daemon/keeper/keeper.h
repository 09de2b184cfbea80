// SPDX-License-Identifier: Apache-2.0
//
// Keeper: holds entries (a record and descriptors) for the one daemon that is connected, and across
// its lives. It reads no record and knows nothing of memory.
//
// When no daemon has been connected for `away_bound`, it lets go of everything: memory that nobody
// can ask for any more goes back.
//
// Threads: one; closing is the Closer's.
#pragma once

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/keeper/closer.h"
#include "daemon/keeper/shelf.h"

namespace gpulease::keeper {

class Keeper {
 public:
  struct Options {
    Duration away_bound{};
    std::string version;
    std::function<void(const std::string&)> log;     // one line for people
    std::function<void(const std::string&)> status;  // what it is at, one line
  };

  // `listener` is listening; `from` is what a former run left.
  Keeper(Options options, UniqueFd listener);
  Keeper(Options options, Unpacked from);

  // Serves until `signals` (a signalfd) turns readable.
  void Run(int signals);
  // Reads what the daemon has sent already, so that nothing is lost half-way through an exec.
  void Drain();

  const Shelf& shelf() const { return shelf_; }
  const UniqueFd& listener() const { return listener_; }
  const UniqueFd& connection() const { return connection_; }
  // Lets go of everything; it is closed by the time that the object is gone.
  void LetGo();

 private:
  void Accept();
  // Reads until there is nothing more, at most `most` messages; drops the connection when it ended.
  void Serve(int most);
  // False: the connection is over.
  bool OnMessage(std::span<const std::byte> bytes, std::vector<UniqueFd> descriptors);
  bool SendAll();
  // Waits for room in the socket. Errors: kUnavailable when the daemon does not read.
  Status Send(std::span<const std::byte> bytes, std::span<const int> descriptors);
  void Answer(std::span<const std::byte> bytes);
  void Drop(const std::string& why);
  // Says so once: who is refused comes again every second.
  void Refuse(UniqueFd socket, const std::string& message, bool for_good);
  void Discard(Entry entry) { closer_.Close(std::move(entry.descriptors)); }
  void TellStatus();

  const Options options_;
  Closer closer_;
  Shelf shelf_;
  UniqueFd listener_;
  UniqueFd connection_;
  bool greeted_ = false;
  Assembly assembly_;
  std::uint64_t sequence_ = 0;
  std::uint64_t acknowledged_ = 0;
  Time away_since_{};  // while nobody is connected
  std::string told_status_;
  std::string told_refusal_;
};

}  // namespace gpulease::keeper
