// SPDX-License-Identifier: Apache-2.0
//
// HandleSocket: the connection over which one session gets its descriptors.
//
// Descriptors on their way count against the sender's limit, and one peer that does not read would
// stop all sends; so at most kMostUnacknowledged of them are on their way to one session, by what
// the client answers and by what the kernel still has for it: a Taken of what was never read makes
// no room. The rest of a parcel follows as the client answers. Nothing here waits.
//
// Invariant: a parcel's descriptors stay open until the last of them was sent or the parcel was
// dropped.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/descriptor_channel.h"
#include "base/handle_protocol.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace gpulease::peers {

inline constexpr std::uint32_t kMostUnacknowledged = kMaxDescriptorsPerMessage;

// The chunks of one lease for one call.
struct Parcel {
  std::uint64_t tag = 0;
  std::uint64_t lease_id = 0;
  std::uint64_t generation = 0;
  bool read_only = false;
  std::vector<int> descriptors;       // borrowed from `owner`, in the order of the chunks
  std::shared_ptr<const void> owner;  // keeps them open
};

// What a connection that reads gets as a rule, though others of the same user do not read.
inline constexpr std::uint32_t kLeastOnTheWay = 8;

// What may be on its way in all: the kernel counts it for the daemon's user and stops every send
// when it is too much.
struct Allowance {
  explicit Allowance(std::uint32_t most_descriptors) : most(most_descriptors) {}
  const std::uint32_t most;
  std::atomic<std::uint32_t> unread = 0;
};

// What all connections of one user together may have on their way: of three quarters of the whole,
// a quarter of what is left, and half of it where each of his connections has next to nothing. So
// however many users do not read, something is left for the next. The last quarter is for who has
// nothing on its way: a connection gets one from it (all that there may be take 0.15 of the whole:
// see startup::Divide), a user's first 8.
struct UserAllowance {
  explicit UserAllowance(std::shared_ptr<Allowance> of_all) : all(std::move(of_all)) {}
  const std::shared_ptr<Allowance> all;
  std::atomic<std::uint32_t> unread = 0;

  void Add(std::uint32_t count) {
    unread += count;
    all->unread += count;
  }
  void Remove(std::uint32_t count) {
    unread -= count;
    all->unread -= count;
  }
  // How many more may be sent to a connection which has `unread_here` on their way.
  std::uint32_t Room(std::uint32_t unread_here) const;
};

class HandleSocket {
 public:
  // `begun`: a former life of the daemon has pushed over this connection, and the client's answers
  // to that may still come.
  HandleSocket(UniqueFd socket, std::shared_ptr<UserAllowance> user, bool begun = false)
      : socket_(std::move(socket)), user_(std::move(user)), begun_(begun) {}
  ~HandleSocket();
  HandleSocket(const HandleSocket&) = delete;
  HandleSocket& operator=(const HandleSocket&) = delete;

  // Sends the parcel, or as much of it as may be on its way now. From any thread.
  //
  // Errors: kUnavailable/kHandOver when the peer has closed; nothing of the parcel follows then.
  Status Push(Parcel parcel);
  // Sends what waits for room in the socket or in the kernel's count. True while something still
  // waits.
  bool Flush();

  // What a Taken of the client means for its lease.
  enum class Answer { kMore, kComplete, kDeclined, kUnknown };
  Answer Acknowledge(const handle::Taken& taken);

  // Sends a message without descriptors. Errors: those of SendMessage.
  template <typename T>
  Status Send(const T& message) {
    return SendMessage(socket_.get(), handle::BytesOf(message), {});
  }
  // Ends the connection for both sides; the descriptor stays until the object goes.
  void Shutdown();
  int descriptor() const { return socket_.get(); }
  bool idle() const;
  // Whether the kernel still has descriptors for the peer, though the connection may be shut down.
  bool HasUnread();

 private:
  struct Waiting {
    Parcel parcel;
    std::uint32_t sent = 0;
  };
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // tag, lease

  struct Unanswered {
    std::uint32_t chunks = 0;  // that the client has not taken yet
    std::uint32_t sent = 0;    // those of them that are on their way
  };

  Status FlushLocked() GPULEASE_REQUIRES(mutex_);
  void LookForUnread() GPULEASE_REQUIRES(mutex_);
  std::uint32_t Room() GPULEASE_REQUIRES(mutex_);
  void DropWaiting(const Key& key) GPULEASE_REQUIRES(mutex_);

  const UniqueFd socket_;
  const std::shared_ptr<UserAllowance> user_;
  const bool begun_;
  mutable Mutex mutex_;
  std::deque<Waiting> waiting_ GPULEASE_GUARDED_BY(mutex_);
  std::map<Key, Unanswered> unanswered_ GPULEASE_GUARDED_BY(mutex_);
  std::uint32_t on_their_way_ GPULEASE_GUARDED_BY(mutex_) = 0;  // as the client answers
  // Sent since the kernel last had nothing for the client.
  std::uint32_t unread_ GPULEASE_GUARDED_BY(mutex_) = 0;
  bool closed_ GPULEASE_GUARDED_BY(mutex_) = false;
};

}  // namespace gpulease::peers
