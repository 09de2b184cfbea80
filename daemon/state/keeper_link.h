// SPDX-License-Identifier: Apache-2.0
//
// KeeperLink: the daemon's connection to its keeper.
//
// Put and Erase only note what is to be told, in order; Flush tells it, and is called before a
// client is answered. What was sent reaches the keeper even when the daemon dies in the next
// instant, so nobody waits for its answer; a keeper that does not answer for kAnswerBound is given
// up, and filled anew when it is back.
//
// Threads: any; Connect, Take, OnReadable and Check on the loop's.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/state/entry.h"
#include "daemon/state/keeper_protocol.h"

namespace gpulease::state {

struct Kept {
  std::uint64_t key = 0;
  keeper::Entry entry;
};

class KeeperLink {
 public:
  // Waits for its answer as long as `patience`, in which the loop does nothing else.
  // Errors: kUnavailable when nobody listens there or answers; kAborted when it refuses for now:
  // another daemon is connected; kPermissionDenied when it refuses for good, or is not the keeper;
  // kFailedPrecondition when it is of another version or may open
  // fewer files than this process; ErrnoError.
  Result<keeper::Welcome> Connect(const std::string& path, const std::string& version,
                                  Duration patience);
  // All entries. Errors: kUnavailable when it does not deliver; the connection is dropped then.
  Result<std::vector<Kept>> Take();

  // While nothing is connected these are forgotten: whoever connects anew tells everything.
  void Put(std::uint64_t key, std::string record, std::vector<int> descriptors,
           std::shared_ptr<const void> owner);
  // The record alone changed.
  void PutRecord(std::uint64_t key, std::string record);
  void Erase(std::uint64_t key);
  void Reset() { Tell(keeper::Kind::kReset); }
  void Settled() { Tell(keeper::Kind::kSettled); }
  void Flush() GPULEASE_EXCLUDES(send_mutex_, queue_mutex_);

  bool connected() const { return connected_; }
  int descriptor() const { return socket_.get(); }
  // What the keeper answered. False when the connection is over: stop watching, and Drop().
  bool OnReadable();
  // False when the keeper has been silent for too long, or a Flush failed: as above.
  bool Check(Time now);
  // Closes the descriptor; Connect may be called again.
  void Drop();
  // Why it ended last.
  std::string why() const;

 private:
  struct Note {
    keeper::Kind kind;
    std::uint64_t key = 0;
    std::string record;
    std::vector<int> descriptors;
    std::shared_ptr<const void> owner;  // keeps them open
    bool same_descriptors = false;
  };

  void Tell(keeper::Kind kind);
  void Enqueue(Note note);
  Status SendNote(const Note& note) GPULEASE_REQUIRES(send_mutex_);
  Status Send(std::span<const std::byte> bytes, std::span<const int> descriptors);
  void Break(const std::string& why) GPULEASE_REQUIRES(send_mutex_);

  UniqueFd socket_;
  std::atomic<bool> connected_ = false;  // false: nothing is sent any more
  std::atomic<std::uint64_t> acknowledged_ = 0;
  std::atomic<std::uint64_t> sent_ = 0;
  std::uint64_t seen_acknowledged_ = 0;  // by Check
  Time silent_since_ = kNever;
  // send_mutex_ before queue_mutex_.
  mutable Mutex send_mutex_;
  std::string why_ GPULEASE_GUARDED_BY(send_mutex_);
  Mutex queue_mutex_;
  std::deque<Note> queue_ GPULEASE_GUARDED_BY(queue_mutex_);
};

}  // namespace gpulease::state
