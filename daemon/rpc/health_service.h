// SPDX-License-Identifier: Apache-2.0
//
// HealthService: gRPC's health protocol. The daemon serves from its first call to its last; gRPC's
// own implementation would bring its callback threads, which cost every other call a thread switch
// (see CallLoop).
#pragma once

#include "daemon/rpc/waiting_call.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace gpulease::rpc {

class HealthService {
 public:
  explicit HealthService(const Services& services) : services_(services) {}

  grpc::Service& service() { return async_; }
  void Listen(grpc::ServerCompletionQueue& queue);

 private:
  const Services& services_;
  grpc::health::v1::Health::AsyncService async_;
};

}  // namespace gpulease::rpc
