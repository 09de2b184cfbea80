// SPDX-License-Identifier: Apache-2.0
//
// WatchCall: one stream of events. Events queue up to a bound; a reader that is slower loses them
// and is told so.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "daemon/rpc/waiting_call.h"
#include "gpulease/v1/lease.grpc.pb.h"

namespace gpulease::rpc {

class WatchCall final : public WaitingCall {
 public:
  // Serves the next Watch, and the one after it.
  static void Listen(const Services& services, v1::LeaseService::AsyncService& async,
                     grpc::ServerCompletionQueue& queue);

 private:
  static constexpr std::size_t kMostQueued = 1024;

  WatchCall(const Services& services, v1::LeaseService::AsyncService& async,
            grpc::ServerCompletionQueue& queue)
      : WaitingCall(services), async_(async), queue_(queue), writer_(&context_) {}
  void Arrive() override;
  void End() override;
  Status Subscribe(const peers::Peer& peer);
  void Add(const std::shared_ptr<const broker::Event>& event);
  void Next() GPULEASE_REQUIRES(mutex_);
  void Written(bool ok);
  void Finish(const grpc::Status& status) GPULEASE_REQUIRES(mutex_);

  v1::LeaseService::AsyncService& async_;
  grpc::ServerCompletionQueue& queue_;
  v1::WatchRequest request_;
  grpc::ServerAsyncWriter<v1::Event> writer_;
  Mutex mutex_;
  std::uint64_t subscription_ GPULEASE_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<const broker::Event>> events_ GPULEASE_GUARDED_BY(mutex_);
  bool writing_ GPULEASE_GUARDED_BY(mutex_) = false;
  bool finished_ GPULEASE_GUARDED_BY(mutex_) = false;
  bool ended_ GPULEASE_GUARDED_BY(mutex_) = false;
  // The status to end with once what is queued was written.
  std::optional<grpc::Status> last_words_ GPULEASE_GUARDED_BY(mutex_);
};

}  // namespace gpulease::rpc
