// SPDX-License-Identifier: Apache-2.0
//
// RawClient: gpulease's API as any gRPC client can use it: a stock gRPC channel, and a bare handle
// socket beside it. Nothing is done that was not asked for, so that a test can stop at every step.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/handle_protocol.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "gpulease/v1/error.pb.h"
#include "gpulease/v1/lease.grpc.pb.h"
#include "gpulease/v1/node.grpc.pb.h"

namespace gpulease::e2e {

// A call's end, with what came beside the message.
template <typename Message>
struct Reply {
  grpc::Status status;
  Message message;
  bool has_detail = false;
  v1::ErrorDetail detail;
  std::string instance;  // trailing metadata

  bool ok() const { return status.ok(); }
};

// "UNAVAILABLE REASON_MEMORY_SHORT: sentence"
std::string Describe(const grpc::Status& status, const v1::ErrorDetail& detail);
// False when the status carries no ErrorDetail.
bool ParseDetail(const grpc::Status& status, v1::ErrorDetail* detail);

// A spec of device or host memory.
v1::AllocationSpec DeviceSpec(Bytes size, const std::string& name = "");
v1::AllocationSpec HostSpec(Bytes size, const std::string& name = "");

// Threads: calls from any; the handle socket from one.
class RawClient {
 public:
  explicit RawClient(std::string runtime_dir);

  // ---- the handle socket
  Status Dial();
  // Says Hello and keeps the session. A refusal is its Error.
  Result<handle::Welcome> Hello(std::uint64_t resume_session_id = 0);
  // Dial and Hello, which must work.
  void Connect();
  void HangUp() { handles_.Reset(); }
  Status SendRaw(std::span<const std::byte> bytes, std::span<const int> descriptors = {});
  // One message; size 0: the daemon has closed.
  Result<std::pair<std::vector<std::byte>, std::vector<UniqueFd>>> ReceiveRaw(
      std::chrono::milliseconds patience = std::chrono::seconds(20));
  // Whether the daemon closes the connection, whatever it says before.
  bool IsHungUpOn();
  // All chunks of a lease that were pushed for `tag`, in order; answers Taken to each Push if asked
  // to.
  Result<std::vector<UniqueFd>> Chunks(std::uint64_t tag, std::uint64_t lease_id, bool take = true);
  Status Take(std::uint64_t tag, std::uint64_t lease_id, std::uint32_t count, bool ok = true);
  int handle_socket() const { return handles_.get(); }

  // ---- gRPC
  template <typename Request, typename Response>
  Reply<Response> Call(grpc::Status (v1::LeaseService::StubInterface::*method)(grpc::ClientContext*,
                                                                               const Request&,
                                                                               Response*),
                       const Request& request,
                       std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    return Finish<Response>(timeout, [&](grpc::ClientContext* context, Response* response) {
      return (leases().*method)(context, request, response);
    });
  }

  // Without a wait, memory that is being prepared (the GPU was busy for a moment) is awaited.
  Reply<v1::AllocateResponse> Allocate(const std::vector<v1::AllocationSpec>& specs,
                                       std::uint64_t wait_ms = 0,
                                       const std::string& request_id = "");
  // The one lease of a request that must be granted, with its chunks taken.
  std::pair<v1::Lease, std::vector<UniqueFd>> MustAllocate(const v1::AllocationSpec& spec);
  Reply<v1::AllocateResponse> Await(std::uint64_t lease_id,
                                    std::chrono::milliseconds timeout = std::chrono::seconds(30));
  Reply<v1::OpenResponse> Open(const std::string& name, v1::Access access = v1::ACCESS_READ_WRITE);
  Reply<v1::OpenResponse> Open(std::uint64_t lease_id, v1::Access access = v1::ACCESS_READ_WRITE);
  Reply<v1::ResizeResponse> Resize(std::uint64_t lease_id, Bytes size, std::uint32_t have_chunks,
                                   std::uint64_t wait_ms = 0);
  Reply<v1::RefreshResponse> Refresh(std::uint64_t lease_id, std::uint32_t have_chunks,
                                     bool takes_part = false);
  Reply<v1::SuspendResponse> Suspend(std::uint64_t lease_id, std::uint32_t have_chunks);
  Reply<v1::ResumeResponse> Resume(std::uint64_t lease_id, std::uint32_t have_chunks,
                                   std::uint64_t wait_ms = 0);
  Reply<v1::CloseResponse> Close(std::uint64_t lease_id);
  Reply<v1::ReleaseResponse> Release(std::uint64_t lease_id, bool force = false);
  Reply<v1::GetLeaseResponse> GetLease(std::uint64_t lease_id);
  Reply<v1::GetLeaseResponse> GetLease(const std::string& name);
  Reply<v1::ListLeasesResponse> ListLeases(const v1::ListLeasesRequest& request = {});
  Reply<v1::GetNodeResponse> GetNode();
  Reply<v1::ListSessionsResponse> ListSessions(const v1::ListSessionsRequest& request = {});
  // GetNode, which must work.
  v1::GetNodeResponse Node();

  // The push tag of the last Allocate, Await, Open, Resize, Refresh or Resume.
  std::uint64_t last_tag() const { return tag_; }
  std::uint64_t session_id() const { return session_id_; }
  void set_session_id(std::uint64_t id) { session_id_ = id; }
  const handle::Welcome& welcome() const { return welcome_; }
  v1::LeaseService::StubInterface& leases() { return *leases_; }
  v1::NodeService::StubInterface& nodes() { return *nodes_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  template <typename Response, typename Body>
  Reply<Response> Finish(std::chrono::milliseconds timeout, Body body) {
    Reply<Response> reply;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    reply.status = body(&context, &reply.message);
    reply.has_detail = ParseDetail(reply.status, &reply.detail);
    const auto& trailing = context.GetServerTrailingMetadata();
    if (const auto found = trailing.find("gpulease-instance"); found != trailing.end()) {
      reply.instance = std::string(found->second.data(), found->second.size());
    }
    return reply;
  }

  const std::string runtime_dir_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::LeaseService::StubInterface> leases_;
  std::unique_ptr<v1::NodeService::StubInterface> nodes_;
  UniqueFd handles_;
  handle::Welcome welcome_;
  std::uint64_t session_id_ = 0;
  std::uint64_t tag_ = 0;
  struct Pushed {
    std::vector<UniqueFd> chunks;
    std::uint32_t total = 0;
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Pushed> pushed_;  // tag, lease
};

}  // namespace gpulease::e2e
