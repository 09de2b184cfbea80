// SPDX-License-Identifier: Apache-2.0
//
// HangUpWatch: tells when what is at the other end of a lease's descriptor is gone. Its thread
// starts with the first that is watched.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/ledger/ids.h"

namespace gpulease::memory {

// Threads: any.
class HangUpWatch {
 public:
  // `gone` is called once for a lease, on the watch's thread, which then watches it no more.
  explicit HangUpWatch(std::function<void(ledger::LeaseId)> gone) : gone_(std::move(gone)) {}
  ~HangUpWatch() { Stop(); }
  HangUpWatch(const HangUpWatch&) = delete;
  HangUpWatch& operator=(const HangUpWatch&) = delete;

  // Keeps the descriptor until Forget(), or until it has told. Calls nobody back from here.
  // Errors: ErrnoError; kFailedPrecondition after Stop().
  Status Watch(ledger::LeaseId lease, std::shared_ptr<const UniqueFd> descriptor);
  // Nothing where it is not watched.
  void Forget(ledger::LeaseId lease);
  // Waits for a call that is in progress; none comes afterwards.
  void Stop();

 private:
  Status Start() GPULEASE_REQUIRES(mutex_);
  void Run();

  const std::function<void(ledger::LeaseId)> gone_;
  Mutex mutex_;
  std::unordered_map<ledger::LeaseId, std::shared_ptr<const UniqueFd>> watched_
      GPULEASE_GUARDED_BY(mutex_);
  bool stopped_ GPULEASE_GUARDED_BY(mutex_) = false;
  // Set before the thread starts.
  UniqueFd epoll_;
  UniqueFd wake_;
  std::thread thread_;
};

}  // namespace gpulease::memory
