// SPDX-License-Identifier: Apache-2.0
//
// AwaitCall: one Await in progress. It lives until gRPC is done with it and the broker has
// answered.
#pragma once

#include <memory>

#include "base/mutex.h"
#include "daemon/rpc/call.h"

namespace gpulease::rpc {

class AwaitCall final : public grpc::ServerUnaryReactor {
 public:
  static grpc::ServerUnaryReactor* Start(const Services& services,
                                         grpc::CallbackServerContext& context,
                                         const v1::AwaitRequest& request,
                                         v1::AllocateResponse& response);

 private:
  explicit AwaitCall(const Services& services) : services_(services) {}
  void OnCancel() override;
  void OnDone() override;

  const Services& services_;
  std::shared_ptr<AwaitCall> self_;  // gRPC's reference: until OnDone
  Mutex mutex_;
  std::uint64_t ticket_ GPULEASE_GUARDED_BY(mutex_) = 0;
  bool cancelled_ GPULEASE_GUARDED_BY(mutex_) = false;
};

}  // namespace gpulease::rpc
