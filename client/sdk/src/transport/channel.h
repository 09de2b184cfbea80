// SPDX-License-Identifier: Apache-2.0
//
// Channel: one connection over which gRPC calls are made: HTTP/2 by nghttp2, without a thread of
// its own. It knows nothing of leases or sessions, never reconnects and never retries.
//
// Threads: any number may call at once. One of those that wait reads the socket for all, the others
// wait for it; who finishes hands the reading on.
//
// Invariant: once dead, a channel stays dead, and every call on it has been answered.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulease {

using Deadline = std::chrono::steady_clock::time_point;

// The largest reply that is taken: a listing page of 1,000 leases is well below 1 MiB.
inline constexpr std::size_t kMaxReplyBytes = std::size_t{16} << 20;

// A second descriptor that is read while a call waits: the handle socket.
class SideSource {
 public:
  // -1: nothing more will come from it.
  virtual int descriptor() const = 0;
  // It is readable. Called without locks of the channel; must not wait.
  virtual void ReadAvailable() = 0;

 protected:
  ~SideSource() = default;
};

// How a call ended.
struct Reply {
  Status status;
  std::string message;   // the response, when status is ok
  std::string instance;  // of the daemon's run; empty when nothing came
  // The connection is lost, and with it the answer: the call may or may not have been carried out.
  bool lost = false;
  // As lost, and the daemon certainly did not see the call.
  bool unprocessed = false;
};

// A request with room for gRPC's prefix in front: append the message to `bytes`.
struct FramedRequest {
  std::string bytes = std::string(5, '\0');
};

class Channel {
 public:
  // Messages of a server's stream. Destroying it cancels the stream. For one thread at a time.
  class Stream {
   public:
    ~Stream();
    // The next message; nothing when none came until `deadline`. Errors: how the stream ended (OK
    // is kUnavailable too: these streams have no end).
    Result<std::optional<std::string>> Next(Deadline deadline, SideSource* side);
    // Messages were dropped, as 1,024 waited unread; says so once.
    bool TakeOverflow();

   private:
    friend class Channel;
    struct State;
    Stream(std::shared_ptr<Channel> channel, std::unique_ptr<State> state);
    std::shared_ptr<Channel> channel_;
    std::unique_ptr<State> state_;
  };

  // Errors: those of ConnectUnix.
  static Result<std::shared_ptr<Channel>> Connect(const std::string& path);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // A unary call. `path` outlives the channel (it is a constant). `side` may be null.
  Reply Call(std::string_view path, FramedRequest request, Deadline deadline, SideSource* side);

  // Starts a call with a stream of responses. `notify` is an eventfd that is signalled when a
  // message or the end was read, by whichever thread; it outlives the stream.
  static Result<std::unique_ptr<Stream>> Open(const std::shared_ptr<Channel>& channel,
                                              std::string_view path, FramedRequest request,
                                              int notify);

  // Whether a call can be started, as far as is known without reading.
  bool usable();
  int descriptor() const;  // for poll

 private:
  struct Impl;
  explicit Channel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpulease
