// SPDX-License-Identifier: Apache-2.0
//
// Session: this client's standing with the daemon: its handle socket, its connection for calls, and
// what becomes of both when the daemon restarts. It knows nothing of memory or of CUDA.
//
// A session goes on over a lost connection when the daemon takes it up again (resumed); otherwise a
// new one begins with the next epoch, and what belonged to the former epoch is gone.
//
// Threads: any. Fork: inert in a child; ok() says so before any lock is taken.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/runtime_dir.h"
#include "client/sdk/codec/codec.h"
#include "client/sdk/include/gpulease/gpulease.h"
#include "client/sdk/src/session/handle_socket.h"
#include "client/sdk/src/transport/channel.h"
#include "gpulease/v1/lease.wire.h"

namespace gpulease {

// One state of the connection: what a call uses from its start to its end.
struct Link {
  std::shared_ptr<HandleSocket> handles;
  std::shared_ptr<Channel> calls;
  std::uint64_t session_id = 0;
  std::uint64_t epoch = 0;
  std::string instance;  // 32 hex digits
};

struct CallTerms {
  Deadline deadline;
  // It may be carried out twice: a call that was lost on the way is made again.
  bool repeatable = true;
  // It ends something: when that is not there any more, a call that was lost has ended it.
  bool ends = false;
  // Descriptors may come while it waits.
  bool hand_over = false;
  // Of what the call speaks of: when the session is another one by now, it is gone. 0: of nothing.
  std::uint64_t epoch = 0;
  // For messages: what the epoch's loss means. "lease 17"
  std::string subject = {};
};

inline namespace abi_v1 {

class Session {
 public:
  // Errors: those of HandleSocket::Connect and of ResolveRuntimePaths.
  static Result<std::shared_ptr<Session>> Connect(const ClientOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Errors: kFailedPrecondition/kSessionEnded   this process is a fork of the one that made it.
  Status ok() const;
  bool inherited() const { return generation_ != ForkGeneration(); }

  // Calls `Method`. `fill` completes the request with what belongs to the link (session id).
  // Errors: the daemon's; kUnavailable when it cannot be reached; kDeadlineExceeded.
  template <typename Method>
  Result<typename Method::Response> Call(
      typename Method::Request request, const CallTerms& terms,
      const std::function<void(typename Method::Request&, const Link&)>& fill = {}) {
    Result<std::string> reply =
        Perform(Method::kPath, terms, [&](std::string& out, const Link& link) {
          if (fill) fill(request, link);
          request.Append(out);
        });
    if (!reply.ok()) return std::move(reply).error();
    return wire::Decode<typename Method::Response>(*reply);
  }

  // As of the last call.
  Link link();
  std::uint64_t epoch() const { return epoch_; }
  const ClientOptions& options() const { return options_; }
  Deadline CallDeadline() const;
  std::uint64_t NextTag() { return ++last_tag_; }
  std::string NextRequestId();

  // The lease is let go of, from a destructor: never waits for a daemon that is away. When it is,
  // it is done as soon as a call has found it again.
  void EndQuietly(std::uint64_t lease_id, bool release, std::uint64_t epoch);

  // Looks, without a call, whether the connection still stands, and tries once to have it again
  // when it does not: for those who sleep for long and make no calls.
  void Refresh();

  Result<int> EventDescriptor();
  Result<std::optional<wire::Event>> NextEvent(std::chrono::milliseconds timeout);

 private:
  struct State;
  struct Events;
  using Encode = std::function<void(std::string&, const Link&)>;

  explicit Session(const ClientOptions& options, RuntimePaths paths);
  Result<std::string> Perform(std::string_view path, const CallTerms& terms, const Encode& encode);
  // A link that can be used, as far as is known.
  Result<Link> Acquire(Deadline deadline);
  Result<Link> Reconnect(Deadline deadline);
  // One attempt.
  Status ConnectOnce(Deadline deadline);
  // The daemon of `link` does not know its session: begin anew with the next call.
  void Abandon(const Link& link);
  void SendPostponed(const Link& link);
  Status Subscribe(Deadline deadline);

  const std::uint64_t generation_ = ForkGeneration();
  const ClientOptions options_;
  const RuntimePaths paths_;
  const std::string request_prefix_;
  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<std::uint64_t> last_tag_{0};
  std::atomic<std::uint64_t> last_request_{0};
  // Behind pointers, so that a forked child can leave them alone.
  std::unique_ptr<State> state_;
  std::unique_ptr<Events> events_;
};

}  // namespace abi_v1
}  // namespace gpulease
