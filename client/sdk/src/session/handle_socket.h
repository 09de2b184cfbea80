// SPDX-License-Identifier: Apache-2.0
//
// HandleSocket: one connection to the daemon's handle socket: the session's opening, and the
// descriptors that come over it, kept apart by the tag of the call that asked for them.
//
// Every push is answered as it is read, so that the daemon can go on with the next. One that could
// not be taken (the limit of open files) is answered so, and is the error of its call alone. One
// that nobody expects any more is given back, unless this session holds its lease.
//
// Threads: any. Reading never waits, except in Collect().
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/handle_protocol.h"
#include "base/result.h"
#include "client/sdk/src/process/fork_guard.h"
#include "client/sdk/src/transport/channel.h"

namespace gpulease {

// The descriptors of one lease, in the order of its chunks.
struct HandedLease {
  std::uint64_t lease_id = 0;
  std::uint64_t generation = 0;
  bool read_only = false;
  std::uint32_t total = 0;           // chunks that it has
  std::vector<LocalFd> descriptors;  // of those that have come

  bool complete() const { return descriptors.size() == total; }
};

class HandleSocket final : public SideSource {
 public:
  struct Options {
    std::string path;
    std::string program;
    std::uint64_t resume_session_id = 0;
    Deadline deadline;
  };

  // Connects and says Hello.
  //
  // Errors: those of ConnectUnix; what the daemon refused with; kUnavailable when it does not
  // answer by the deadline; kFailedPrecondition when it speaks another version.
  static Result<std::shared_ptr<HandleSocket>> Connect(const Options& options);

  const handle::Welcome& welcome() const { return welcome_; }
  bool resumed() const { return (welcome_.flags & handle::kWelcomeResumed) != 0; }

  // Pushes with this tag are kept from now on.
  void Expect(std::uint64_t tag);
  // They are not wanted any more. Gives the leases whose descriptors had been taken already.
  std::vector<std::uint64_t> Forget(std::uint64_t tag);
  // All descriptors of these leases (ids), which have been pushed before their reply was sent.
  // Errors: kResourceExhausted/kDescriptorLimit, given back to the daemon; kUnavailable/kHandOver
  // when they do not come.
  Result<std::vector<HandedLease>> Collect(std::uint64_t tag, std::span<const std::uint64_t> leases,
                                           Deadline deadline);
  // The session does not hold the lease any more: a push of it out of turn is given back.
  void LetGo(std::uint64_t lease_id);
  bool Holds(std::uint64_t lease_id);

  // This connection takes the session of `former` up: what it holds, and what it waits for.
  void InheritFrom(HandleSocket& former);

  // The daemon has closed it, as far as was read.
  bool closed() const { return closed_; }
  // Closes this end: the session is over for us.
  void Close();

  // SideSource
  int descriptor() const override { return closed_ ? -1 : socket_.get(); }
  void ReadAvailable() override;

 private:
  struct Waiting {
    std::vector<HandedLease> leases;
    std::optional<Error> error;
  };

  HandleSocket() = default;
  void Take(const handle::Push& push, std::vector<UniqueFd> descriptors, const ForkHold& hold);
  void Answer(const handle::Push& push, bool ok);

  LocalFd socket_;
  handle::Welcome welcome_;
  std::atomic<bool> closed_{false};

  std::mutex mutex_;
  std::map<std::uint64_t, Waiting> waiting_;  // by tag; under mutex_
  std::set<std::uint64_t> held_;              // under mutex_
};

}  // namespace gpulease
