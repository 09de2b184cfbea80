// SPDX-License-Identifier: Apache-2.0
//
// FakeNode: the services of a daemon whose answers never change, for gpuleasectl to ask.
//
// Two GPUs, one of them lost with memory that does not come back; leases of every state, two a
// page. GetLease answers by name with the error of that name: "missing", "denied", "stopping",
// "broken", "short", "internal".
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpulease/v1/lease.grpc.pb.h"
#include "gpulease/v1/node.grpc.pb.h"

namespace gpulease::golden {

class FakeNodeService final : public v1::NodeService::Service {
 public:
  explicit FakeNodeService(bool idle) : idle_(idle) {}

  grpc::Status GetNode(grpc::ServerContext*, const v1::GetNodeRequest*,
                       v1::GetNodeResponse* response) override;
  grpc::Status GetBudget(grpc::ServerContext*, const v1::GetBudgetRequest*,
                         v1::GetBudgetResponse* response) override;
  grpc::Status ListSessions(grpc::ServerContext*, const v1::ListSessionsRequest* request,
                            v1::ListSessionsResponse* response) override;

 private:
  const bool idle_;  // nobody is connected and nothing is leased
};

class FakeLeaseService final : public v1::LeaseService::Service {
 public:
  explicit FakeLeaseService(bool idle) : idle_(idle) {}

  grpc::Status ListLeases(grpc::ServerContext*, const v1::ListLeasesRequest* request,
                          v1::ListLeasesResponse* response) override;
  grpc::Status GetLease(grpc::ServerContext*, const v1::GetLeaseRequest* request,
                        v1::GetLeaseResponse* response) override;
  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest* request,
                       v1::ReleaseResponse* response) override;

  // What Release was asked for so far.
  std::vector<v1::ReleaseRequest> releases() const;

 private:
  const bool idle_;
  mutable std::mutex mutex_;
  std::vector<v1::ReleaseRequest> releases_;
};

// A node that serves on `directory`/gpulease.sock while it lives.
class FakeNode {
 public:
  FakeNode(const std::string& directory, bool idle);
  ~FakeNode();

  const FakeLeaseService& leases() const { return leases_; }

 private:
  FakeNodeService node_;
  FakeLeaseService leases_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace gpulease::golden
