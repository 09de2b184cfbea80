// SPDX-License-Identifier: Apache-2.0
//
// WatchCall: one stream of events. Events queue up to a bound; a reader that is slower loses them
// and is told so.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "daemon/rpc/call.h"

namespace gpulease::rpc {

class WatchCall final : public grpc::ServerWriteReactor<v1::Event> {
 public:
  static grpc::ServerWriteReactor<v1::Event>* Start(const Services& services,
                                                    grpc::CallbackServerContext& context,
                                                    const v1::WatchRequest& request);

 private:
  static constexpr std::size_t kMostQueued = 1024;  // of about 200 bytes

  explicit WatchCall(const Services& services) : services_(services) {}
  void Add(const broker::Event& event);
  void Write() GPULEASE_REQUIRES(mutex_);
  void End(grpc::Status status);
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  const Services& services_;
  std::shared_ptr<WatchCall> self_;
  Mutex mutex_;
  std::uint64_t subscription_ GPULEASE_GUARDED_BY(mutex_) = 0;
  std::deque<v1::Event> queue_ GPULEASE_GUARDED_BY(mutex_);
  v1::Event writing_ GPULEASE_GUARDED_BY(mutex_);
  bool in_flight_ GPULEASE_GUARDED_BY(mutex_) = false;
  bool ended_ GPULEASE_GUARDED_BY(mutex_) = false;
  // The status to end with once what is queued was written.
  std::optional<grpc::Status> last_words_ GPULEASE_GUARDED_BY(mutex_);
};

}  // namespace gpulease::rpc
