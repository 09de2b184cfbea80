// SPDX-License-Identifier: Apache-2.0
//
// AwaitCall: one Await in progress. It lives until gRPC is done with it and the broker has
// answered.
#pragma once

#include <memory>

#include "base/mutex.h"
#include "daemon/rpc/waiting_call.h"
#include "gpulease/v1/lease.grpc.pb.h"

namespace gpulease::rpc {

class AwaitCall final : public WaitingCall {
 public:
  // Serves the next Await, and the one after it.
  static void Listen(const Services& services, v1::LeaseService::AsyncService& async,
                     grpc::ServerCompletionQueue& queue);

 private:
  AwaitCall(const Services& services, v1::LeaseService::AsyncService& async,
            grpc::ServerCompletionQueue& queue)
      : WaitingCall(services), async_(async), queue_(queue), writer_(&context_) {}
  void Arrive() override;
  void End() override;
  void Answer(Result<broker::Grant> grant);
  void Finish(const grpc::Status& status);

  v1::LeaseService::AsyncService& async_;
  grpc::ServerCompletionQueue& queue_;
  v1::AwaitRequest request_;
  v1::AllocateResponse response_;
  grpc::ServerAsyncResponseWriter<v1::AllocateResponse> writer_;
  Mutex mutex_;
  std::uint64_t ticket_ GPULEASE_GUARDED_BY(mutex_) = 0;
  bool ended_ GPULEASE_GUARDED_BY(mutex_) = false;
};

}  // namespace gpulease::rpc
