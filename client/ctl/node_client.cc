// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/node_client.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/unique_fd.h"
#include "gpulease/v1/error.pb.h"

namespace gpulease::ctl {
namespace {

// 1,000 leases a page, each with the chunks and holders of at most 64 KiB.
constexpr int kLargestReply = 64 << 20;

Result<UniqueFd> ConnectSocket(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoError("socket", errno);
  // A daemon that does not accept has a full backlog, on which connect() would wait for ever.
  const timeval timeout{.tv_sec = NodeClient::kDeadline.count(), .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);  // ResolveRuntimePaths: it fits
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error_number = errno;
    if (error_number == EACCES || error_number == EPERM)
      return MakeError(Code::kPermissionDenied, Reason::kUnspecified,
                       path +
                           ": you may not connect; `socket_group` of the daemon's "
                           "configuration says who may");
    return MakeError(Code::kUnavailable, Reason::kUnspecified,
                     "no daemon answers at " + path + ": " + std::strerror(error_number) +
                         "; is gpuleased running, and --runtime-dir the one of its service?");
  }
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  return socket;
}

// One call with a deadline: `method` of `stub`.
template <typename Stub, typename Request, typename Response>
Result<Response> Call(Stub& stub,
                      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                      const Request& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + NodeClient::kDeadline);
  Response response;
  const grpc::Status status = (stub.*method)(&context, request, &response);
  if (!status.ok()) return ErrorOf(status);
  return response;
}

}  // namespace

Error ErrorOf(const grpc::Status& status) {
  Error error = MakeError(static_cast<Code>(status.error_code()), Reason::kUnspecified,
                          status.error_message());
  v1::ErrorStatus envelope;
  v1::ErrorDetail detail;
  if (envelope.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& any : envelope.details()) {
      if (!any.UnpackTo(&detail)) continue;
      error.reason = static_cast<Reason>(detail.reason());
      error.requested_bytes = detail.requested_bytes();
      error.available_bytes = detail.available_bytes();
      error.limit_bytes = detail.limit_bytes();
      for (const v1::Blocker& blocker : detail.blockers())
        error.blockers.push_back(
            {blocker.lease_id(), blocker.pid(), blocker.uid(), blocker.size_bytes()});
    }
  }
  if (error.code == Code::kDeadlineExceeded && error.reason == Reason::kUnspecified)
    error.message = "the daemon accepted the connection and did not answer within " +
                    std::to_string(NodeClient::kDeadline.count()) + " s";
  return error;
}

Result<NodeClient> NodeClient::Connect(const RuntimePaths& paths) {
  Result<UniqueFd> socket = ConnectSocket(paths.grpc_socket);
  if (!socket.ok()) return std::move(socket).error();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kLargestReply);
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomInsecureChannelFromFd("gpuleased", socket->Release(), arguments);
  NodeClient client;
  client.node_ = v1::NodeService::NewStub(channel);
  client.leases_ = v1::LeaseService::NewStub(channel);
  return client;
}

Result<v1::GetNodeResponse> NodeClient::GetNode() {
  return Call(*node_, &v1::NodeService::Stub::GetNode, v1::GetNodeRequest());
}

Result<v1::GetBudgetResponse> NodeClient::GetBudget() {
  return Call(*node_, &v1::NodeService::Stub::GetBudget, v1::GetBudgetRequest());
}

Result<std::vector<v1::Session>> NodeClient::ListSessions() {
  std::vector<v1::Session> all;
  v1::ListSessionsRequest request;
  do {
    auto page = Call(*node_, &v1::NodeService::Stub::ListSessions, request);
    if (!page.ok()) return std::move(page).error();
    all.insert(all.end(), page->sessions().begin(), page->sessions().end());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return all;
}

Result<std::vector<v1::Lease>> NodeClient::ListLeases(const LeaseFilter& filter) {
  std::vector<v1::Lease> all;
  v1::ListLeasesRequest request;
  request.set_gpu_uuid(filter.gpu_uuid);
  if (filter.uid) request.set_uid(*filter.uid);
  request.set_orphans(filter.orphans);
  do {
    auto page = Call(*leases_, &v1::LeaseService::Stub::ListLeases, request);
    if (!page.ok()) return std::move(page).error();
    all.insert(all.end(), page->leases().begin(), page->leases().end());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return all;
}

Result<v1::Lease> NodeClient::GetLease(std::string_view name_or_id) {
  v1::GetLeaseRequest request;
  std::uint64_t lease_id = 0;
  const char* const end = name_or_id.data() + name_or_id.size();
  const auto [rest, error] = std::from_chars(name_or_id.data(), end, lease_id);
  if (error == std::errc() && rest == end)
    request.set_lease_id(lease_id);
  else
    request.set_name(std::string(name_or_id));
  auto response = Call(*leases_, &v1::LeaseService::Stub::GetLease, request);
  if (!response.ok()) return std::move(response).error();
  return response->lease();
}

Result<v1::DrainResponse> NodeClient::Drain(const std::string& uuid, v1::DrainMode mode) {
  v1::DrainRequest request;
  request.set_gpu_uuid(uuid);
  request.set_mode(mode);
  return Call(*node_, &v1::NodeService::Stub::Drain, request);
}

Result<v1::UndrainResponse> NodeClient::Undrain(const std::string& uuid) {
  v1::UndrainRequest request;
  request.set_gpu_uuid(uuid);
  return Call(*node_, &v1::NodeService::Stub::Undrain, request);
}

Result<v1::ReleaseResponse> NodeClient::Release(std::uint64_t lease_id, bool force) {
  v1::ReleaseRequest request;  // no session: the caller is an administrator
  request.set_lease_id(lease_id);
  request.set_force(force);
  return Call(*leases_, &v1::LeaseService::Stub::Release, request);
}

}  // namespace gpulease::ctl
