// SPDX-License-Identifier: Apache-2.0
//
// Barriers between processes, by name, in pinned memory that the daemon leases:
//
//   gpulease::Client client;
//   gpulease::Barrier step(client, {.name = "step", .participants = 8});
//   for (;;) {
//     Work();
//     step.Wait();  // until all eight are here
//   }
//
// A round costs no call to the daemon: participants spin for some 50 µs where there is a processor
// for each of them, then sleep. CUDA is not used. What processors wrote before a round, all of them
// see after it; work on a GPU is another matter: synchronize its stream first.
//
// When a participant dies, the daemon says so in the barrier's memory, and nobody waits for it in
// vain: the barrier is broken. It is broken too by one whose wait was over and by one who left: who
// destroys his Barrier between two rounds has taken part in those that ended, and breaks those to
// come. Broken is broken for all and for good; a barrier of the same name can be joined anew, by
// all who are left or come anew, and is a fresh one.
//
// The barrier lives through a restart of the daemon as leases do: who waits goes on to wait, and a
// participant that dies while the daemon is away is noticed by the next one.
//
// Who may write to the memory can break the barrier, or let it end early; no one else. The daemon
// shows it among the leases, under its name.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gpulease/gpulease.h"

namespace gpulease {
inline namespace abi_v1 {

struct BarrierOptions {
  // As AllocateOptions::name: who comes first makes a lease of this name. "alice/step" joins that
  // of another user, and waits for her to make it.
  std::string name = {};
  unsigned participants = 0;  // 1 to 256
  // Of the lease that is made: who may join.
  unsigned mode = 0600;
  std::optional<std::uint32_t> gid = {};
  // How long to try to join while a broken barrier of the name, or a full one, is still there.
  std::chrono::milliseconds timeout{30000};
};

class BarrierRecord;

// One participant. Movable. Several threads of a process may take part, each with a Barrier of its
// own. In a forked child it is inert.
class GPULEASE_API Barrier {
 public:
  static constexpr std::chrono::milliseconds kForever = std::chrono::milliseconds::max();

  Barrier();  // empty
  // Joins. Does not wait for the others: the first round does.
  //
  // Throws:
  //   kInvalidArgument     name or participants are out of range
  //   kFailedPrecondition  the barrier has another number of participants, or the name is that of
  //                        something else (kNameTaken), or of another version of this library
  //                        (kUnsupported)
  //   kPermissionDenied, kNotFound   another user's, which she has not made within `timeout` or
  //                        which may not be opened for writing
  //   kDeadlineExceeded    (kWaitOver) one of this name stayed broken or full for all of `timeout`:
  //                        its owner has not looked at it, or it has its participants
  //   and what Client::Allocate throws
  Barrier(Client& client, const BarrierOptions& options);
  Barrier(Barrier&&) noexcept;
  Barrier& operator=(Barrier&&) noexcept;
  ~Barrier();  // leaves

  explicit operator bool() const { return record_ != nullptr; }
  // Waits until all participants are here. True for one of them, the last to come.
  //
  // Throws, and the barrier is broken then:
  //   kDeadlineExceeded    (kWaitOver) `timeout` was over; says how many had come
  //   kAborted             (kPeerGone) a participant died, left or gave up; says who, as far as is
  //                        known
  //   kFailedPrecondition  (kSessionEnded) the daemon ended the session; another thread waits with
  //                        this Barrier (this breaks nothing)
  bool Wait(std::chrono::milliseconds timeout = kForever);
  // A look that waits for nobody.
  bool broken() const;
  // Leaves, as destroying it does. Empty after it.
  void Leave();

  const std::string& name() const;
  unsigned participants() const;
  unsigned index() const;  // 0 to participants - 1, in the order in which they joined
  std::uint64_t lease_id() const;

 private:
  std::shared_ptr<BarrierRecord> record_;
};

}  // namespace abi_v1
}  // namespace gpulease
