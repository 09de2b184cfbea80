// SPDX-License-Identifier: Apache-2.0
//
// NodeClient: gpuleasectl's side of the gRPC API. One connection, a deadline on each call, every
// page of a listing.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/runtime_dir.h"
#include "gpulease/v1/lease.grpc.pb.h"
#include "gpulease/v1/node.grpc.pb.h"

namespace gpulease::ctl {

// Which leases of a listing.
struct LeaseFilter {
  std::string gpu_uuid;  // empty: all
  std::optional<std::uint32_t> uid;
  bool orphans = false;  // those alone that outlived their owner
};

// Errors of every call are the daemon's, with their details. Besides:
//   kUnavailable with Reason::kUnspecified, kDeadlineExceeded   the daemon does not answer
//   kPermissionDenied                                           the socket may not be opened
class NodeClient {
 public:
  static constexpr std::chrono::seconds kDeadline{5};

  static Result<NodeClient> Connect(const RuntimePaths& paths);

  Result<v1::GetNodeResponse> GetNode();
  Result<v1::GetBudgetResponse> GetBudget();
  Result<std::vector<v1::Session>> ListSessions();
  Result<std::vector<v1::Lease>> ListLeases(const LeaseFilter& filter);
  Result<v1::DrainResponse> Drain(const std::string& uuid, v1::DrainMode mode);
  Result<v1::UndrainResponse> Undrain(const std::string& uuid);
  // By name or, when it is all digits, by id.
  Result<v1::Lease> GetLease(std::string_view name_or_id);
  Result<v1::ReleaseResponse> Release(std::uint64_t lease_id, bool force);

 private:
  NodeClient() = default;

  std::unique_ptr<v1::NodeService::Stub> node_;
  std::unique_ptr<v1::LeaseService::Stub> leases_;
};

// What a call answered: the details of `status` where it has some.
Error ErrorOf(const grpc::Status& status);

}  // namespace gpulease::ctl
