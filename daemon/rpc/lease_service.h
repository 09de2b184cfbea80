// SPDX-License-Identifier: Apache-2.0
//
// LeaseService: checks the form of each request, calls the broker, converts the answer. It decides
// nothing. Calls that wait (Await, Watch) hold no thread.
#pragma once

#include "daemon/rpc/call.h"
#include "gpulease/v1/lease.grpc.pb.h"

namespace gpulease::rpc {

class LeaseService final
    : public v1::LeaseService::WithCallbackMethod_Await<
          v1::LeaseService::WithCallbackMethod_Watch<v1::LeaseService::Service>> {
 public:
  explicit LeaseService(const Services& services) : services_(services) {}

  grpc::Status Allocate(grpc::ServerContext* context, const v1::AllocateRequest* request,
                        v1::AllocateResponse* response) override;
  grpc::ServerUnaryReactor* Await(grpc::CallbackServerContext* context,
                                  const v1::AwaitRequest* request,
                                  v1::AllocateResponse* response) override;
  grpc::Status Open(grpc::ServerContext* context, const v1::OpenRequest* request,
                    v1::OpenResponse* response) override;
  grpc::Status Close(grpc::ServerContext* context, const v1::CloseRequest* request,
                     v1::CloseResponse* response) override;
  grpc::Status Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                       v1::ReleaseResponse* response) override;
  grpc::Status GetLease(grpc::ServerContext* context, const v1::GetLeaseRequest* request,
                        v1::GetLeaseResponse* response) override;
  grpc::Status ListLeases(grpc::ServerContext* context, const v1::ListLeasesRequest* request,
                          v1::ListLeasesResponse* response) override;
  grpc::ServerWriteReactor<v1::Event>* Watch(grpc::CallbackServerContext* context,
                                             const v1::WatchRequest* request) override;

 private:
  const Services& services_;
};

}  // namespace gpulease::rpc
