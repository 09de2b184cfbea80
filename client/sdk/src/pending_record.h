// SPDX-License-Identifier: Apache-2.0
//
// PendingRecord: a request for memory that is in the queue, or was granted and not yet picked up.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"
#include "client/sdk/src/hand_over.h"

namespace gpulease {
inline namespace abi_v1 {

class PendingRecord {
 public:
  // Asks for all of `options`, or none. `wait` as in AllocateOptions; `loading`: to fill
  // them for others.
  static Result<std::shared_ptr<PendingRecord>> Request(std::shared_ptr<Session> session,
                                                        std::span<const AllocateOptions> options,
                                                        std::chrono::milliseconds wait,
                                                        bool loading = false);
  ~PendingRecord();

  // The leases, or none when the timeout was over first.
  Result<std::vector<std::shared_ptr<LeaseRecord>>> Wait(std::chrono::milliseconds timeout);
  Status Cancel();

  bool queued() const;
  std::uint64_t first_id() const;
  std::uint32_t position() const;
  // When it was asked for.
  const std::vector<BlockingLease>& blockers() const { return blockers_; }
  const std::shared_ptr<Session>& session() const { return hand_over_->session(); }

 private:
  PendingRecord() = default;
  // Sends the request, for the first time or (the daemon's next life does not know who waited)
  // again.
  Status Ask();
  bool QueuedLocked() const;

  std::unique_ptr<HandOver> hand_over_;
  wire::AllocateRequest request_;
  std::chrono::steady_clock::time_point wait_ends_;
  std::uint64_t epoch_ = 0;
  std::vector<BlockingLease> blockers_;
  mutable std::mutex mutex_;
  // Under mutex_:
  std::uint32_t position_ = 0;
  std::vector<wire::Lease> leases_;
  bool over_ = false;
  // What travels with each lease; null for those without.
  std::vector<std::shared_ptr<LeaseRecord>> companions_;
};

}  // namespace abi_v1
}  // namespace gpulease
