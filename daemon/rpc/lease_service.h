// SPDX-License-Identifier: Apache-2.0
//
// LeaseService: checks the form of each request, calls the broker, converts the answer. It decides
// nothing. Calls that wait (Await, Watch) hold no thread.
#pragma once

#include "daemon/rpc/call.h"
#include "gpulease/v1/lease.grpc.pb.h"

namespace gpulease::rpc {

class LeaseService {
 public:
  explicit LeaseService(const Services& services) : services_(services) {}

  grpc::Service& service() { return async_; }
  // Begins to serve, once the server has started.
  void Listen(grpc::ServerCompletionQueue& queue);

  // The methods that answer at once, as they stand behind gRPC.
  Status Allocate(const peers::Peer& peer, const v1::AllocateRequest& request,
                  v1::AllocateResponse& response);
  Status Open(const peers::Peer& peer, const v1::OpenRequest& request, v1::OpenResponse& response);
  Status Close(const peers::Peer& peer, const v1::CloseRequest& request,
               v1::CloseResponse& response);
  Status Release(const peers::Peer& peer, const v1::ReleaseRequest& request,
                 v1::ReleaseResponse& response);
  Status GetLease(const peers::Peer& peer, const v1::GetLeaseRequest& request,
                  v1::GetLeaseResponse& response);
  Status Seal(const peers::Peer& peer, const v1::SealRequest& request, v1::SealResponse& response);
  Status Claim(const peers::Peer& peer, const v1::ClaimRequest& request,
               v1::ClaimResponse& response);
  Status Resize(const peers::Peer& peer, const v1::ResizeRequest& request,
                v1::ResizeResponse& response);
  Status Refresh(const peers::Peer& peer, const v1::RefreshRequest& request,
                 v1::RefreshResponse& response);
  Status Suspend(const peers::Peer& peer, const v1::SuspendRequest& request,
                 v1::SuspendResponse& response);
  Status Resume(const peers::Peer& peer, const v1::ResumeRequest& request,
                v1::ResumeResponse& response);
  Status GetDirectory(const peers::Peer& peer, const v1::GetDirectoryRequest& request,
                      v1::GetDirectoryResponse& response);
  Status ListLeases(const peers::Peer& peer, const v1::ListLeasesRequest& request,
                    v1::ListLeasesResponse& response);

 private:
  const Services& services_;
  v1::LeaseService::AsyncService async_;
};

}  // namespace gpulease::rpc
