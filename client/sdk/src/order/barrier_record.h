// SPDX-License-Identifier: Apache-2.0
//
// BarrierRecord: what a Barrier object stands for: a slot of a barrier, with the lease that its
// memory is and the mapping of it. Both go as soon as the barrier is seen broken, so that its name
// is free when its owner has looked.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "client/sdk/include/gpulease/barrier.h"
#include "client/sdk/src/lease_record.h"
#include "client/sdk/src/order/barrier_page.h"

namespace gpulease {
inline namespace abi_v1 {

class BarrierRecord {
 public:
  // Errors: those of Barrier::Barrier.
  static Result<std::shared_ptr<BarrierRecord>> Join(const std::shared_ptr<Session>& session,
                                                     const BarrierOptions& options);
  ~BarrierRecord();
  BarrierRecord(const BarrierRecord&) = delete;
  BarrierRecord& operator=(const BarrierRecord&) = delete;

  // Errors: those of Barrier::Wait.
  Result<bool> Wait(std::chrono::milliseconds timeout);
  bool broken();
  // Errors: kFailedPrecondition/kSessionEnded in a forked child.
  Status ok() const { return session_->ok(); }

  const std::string& name() const { return name_; }
  unsigned participants() const { return participants_; }
  unsigned slot() const { return slot_; }
  std::uint64_t lease_id() const { return lease_id_; }

 private:
  using Time = std::chrono::steady_clock::time_point;

  BarrierRecord(std::shared_ptr<Session> session, const BarrierOptions& options);
  // One attempt. Nothing when it has to be tried again, for what `obstacle` says.
  static Result<std::shared_ptr<BarrierRecord>> TryJoin(const std::shared_ptr<Session>& session,
                                                        const BarrierOptions& options,
                                                        Error& obstacle);
  // What broke it, as far as the page and the daemon know.
  Error Explain(const BarrierPage::Broken& broken);
  std::string WhoIsGone();
  std::string NameOf(unsigned slot) const;
  // Breaks the barrier unless it is broken, and lets go of its memory.
  void Leave();

  const std::shared_ptr<Session> session_;
  const std::string name_;
  const unsigned participants_;
  unsigned slot_ = 0;
  std::uint64_t lease_id_ = 0;
  std::shared_ptr<LeaseRecord> lease_;
  std::shared_ptr<MappedRange> range_;
  std::optional<BarrierPage> page_;  // none: it was seen broken
  std::optional<Error> error_;       // why
  std::atomic<bool> waiting_{false};
};

}  // namespace abi_v1
}  // namespace gpulease
