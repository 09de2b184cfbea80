// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/raw_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/descriptor_channel.h"

namespace gpulease::e2e {

bool ParseDetail(const grpc::Status& status, v1::ErrorDetail* detail) {
  v1::ErrorStatus envelope;
  return !status.error_details().empty() && envelope.ParseFromString(status.error_details()) &&
         envelope.details_size() == 1 && envelope.code() == status.error_code() &&
         envelope.message() == status.error_message() && envelope.details(0).UnpackTo(detail);
}

std::string Describe(const grpc::Status& status, const v1::ErrorDetail& detail) {
  if (status.ok()) return "OK";
  return std::string(CodeName(static_cast<Code>(status.error_code()))) + " " +
         v1::Reason_Name(detail.reason()) + ": " + status.error_message();
}

v1::AllocationSpec DeviceSpec(Bytes size, const std::string& name) {
  v1::AllocationSpec spec;
  spec.set_kind(v1::MEMORY_KIND_DEVICE);
  spec.set_size_bytes(size);
  spec.set_name(name);
  return spec;
}

v1::AllocationSpec HostSpec(Bytes size, const std::string& name) {
  v1::AllocationSpec spec = DeviceSpec(size, name);
  spec.set_kind(v1::MEMORY_KIND_HOST);
  return spec;
}

RawClient::RawClient(std::string runtime_dir) : runtime_dir_(std::move(runtime_dir)) {
  grpc::ChannelArguments arguments;
  // A connection of its own, as two processes would have.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  channel_ = grpc::CreateCustomChannel("unix:" + runtime_dir_ + "/gpulease.sock",
                                       grpc::InsecureChannelCredentials(), arguments);
  leases_ = v1::LeaseService::NewStub(channel_);
  nodes_ = v1::NodeService::NewStub(channel_);
}

// ------------------------------------------------------------------------------------------------
// the handle socket

Status RawClient::Dial() {
  handles_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!handles_) return ErrnoError("socket", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = runtime_dir_ + "/handles.sock";
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (connect(handles_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoError("connect " + path, errno);
  }
  return {};
}

Status RawClient::SendRaw(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  return SendMessage(handles_.get(), bytes, descriptors);
}

Result<std::pair<std::vector<std::byte>, std::vector<UniqueFd>>> RawClient::ReceiveRaw(
    std::chrono::milliseconds patience) {
  pollfd ready = {handles_.get(), POLLIN, 0};
  if (poll(&ready, 1, static_cast<int>(patience.count())) != 1) {
    return MakeError(Code::kDeadlineExceeded, Reason::kUnspecified,
                     "nothing came on the handle socket");
  }
  std::vector<std::byte> buffer(handle::kMaxMessageBytes);
  Result<ReceivedMessage> message = ReceiveMessage(handles_.get(), buffer, false);
  if (!message.ok()) return std::move(message).error();
  buffer.resize(message->size);
  return std::pair(std::move(buffer), std::move(message->descriptors));
}

bool RawClient::IsHungUpOn() {
  for (;;) {
    auto message = ReceiveRaw();
    if (!message.ok()) return message.error().code != Code::kDeadlineExceeded;
    if (message->first.empty()) return true;
  }
}

Result<handle::Welcome> RawClient::Hello(std::uint64_t resume_session_id) {
  handle::Hello hello;
  hello.resume_session_id = resume_session_id;
  std::strcpy(hello.client_version, "raw");
  std::strcpy(hello.program, "raw-client");
  GPULEASE_RETURN_IF_ERROR(SendRaw(handle::BytesOf(hello)));
  auto message = ReceiveRaw();
  if (!message.ok()) return std::move(message).error();
  const std::span<const std::byte> bytes = message->first;
  if (handle::KindOf(bytes) == handle::Kind::kWelcome) {
    if (const auto welcome = handle::Parse<handle::Welcome>(bytes)) {
      welcome_ = *welcome;
      session_id_ = welcome->session_id;
      return *welcome;
    }
  }
  if (handle::KindOf(bytes) == handle::Kind::kRefused) {
    if (const auto refused = handle::Parse<handle::Refused>(bytes)) {
      return MakeError(static_cast<Code>(refused->code), static_cast<Reason>(refused->reason),
                       refused->message);
    }
  }
  return MakeError(Code::kDataLoss, Reason::kUnspecified,
                   "neither Welcome nor Refused, but " + std::to_string(bytes.size()) + " bytes");
}

void RawClient::Connect() {
  const Status dialled = Dial();
  GPULEASE_CHECK(dialled.ok(), dialled.error().message);
  const Result<handle::Welcome> welcome = Hello();
  GPULEASE_CHECK(welcome.ok(), welcome.error().message);
}

Status RawClient::Take(std::uint64_t tag, std::uint64_t lease_id, std::uint32_t count, bool ok) {
  handle::Taken taken;
  taken.tag = tag;
  taken.lease_id = lease_id;
  taken.count = count;
  taken.ok = ok ? 1 : 0;
  return SendRaw(handle::BytesOf(taken));
}

Result<std::vector<UniqueFd>> RawClient::Chunks(std::uint64_t tag, std::uint64_t lease_id,
                                                bool take) {
  for (;;) {
    const auto found = pushed_.find({tag, lease_id});
    if (found != pushed_.end() && found->second.chunks.size() == found->second.total) {
      std::vector<UniqueFd> chunks = std::move(found->second.chunks);
      pushed_.erase(found);
      return chunks;
    }
    auto message = ReceiveRaw();
    if (!message.ok()) return std::move(message).error();
    const auto push = handle::Parse<handle::Push>(message->first);
    if (handle::KindOf(message->first) != handle::Kind::kPush || !push ||
        push->count != message->second.size()) {
      return MakeError(Code::kDataLoss, Reason::kUnspecified, "no Push, or not as it says");
    }
    Pushed& pushed = pushed_[{push->tag, push->lease_id}];
    if (push->first != pushed.chunks.size()) {
      return MakeError(Code::kDataLoss, Reason::kUnspecified, "chunks came out of order");
    }
    pushed.total = push->total;
    for (UniqueFd& chunk : message->second) pushed.chunks.push_back(std::move(chunk));
    if (take) GPULEASE_RETURN_IF_ERROR(Take(push->tag, push->lease_id, push->count));
  }
}

// ------------------------------------------------------------------------------------------------
// gRPC

Reply<v1::AllocateResponse> RawClient::Allocate(const std::vector<v1::AllocationSpec>& specs,
                                                std::uint64_t wait_ms,
                                                const std::string& request_id) {
  v1::AllocateRequest request;
  request.set_session_id(session_id_);
  request.set_push_tag(++tag_);
  for (const v1::AllocationSpec& spec : specs) *request.add_specs() = spec;
  request.set_wait_ms(wait_ms);
  request.set_request_id(request_id);
  Reply<v1::AllocateResponse> reply = Call(&v1::LeaseService::StubInterface::Allocate, request);
  if (reply.ok() && wait_ms == 0 && reply.message.leases(0).state() == v1::LEASE_STATE_QUEUED) {
    return Await(reply.message.leases(0).lease_id());
  }
  return reply;
}

std::pair<v1::Lease, std::vector<UniqueFd>> RawClient::MustAllocate(
    const v1::AllocationSpec& spec) {
  Reply<v1::AllocateResponse> reply = Allocate({spec});
  GPULEASE_CHECK(reply.ok(), Describe(reply.status, reply.detail));
  if (reply.message.leases(0).state() == v1::LEASE_STATE_QUEUED) {
    // What was released just now is on its way back.
    reply = Await(reply.message.leases(0).lease_id());
    GPULEASE_CHECK(reply.ok(), Describe(reply.status, reply.detail));
  }
  const v1::Lease& lease = reply.message.leases(0);
  GPULEASE_CHECK(lease.state() == v1::LEASE_STATE_OFFERED, "it is queued");
  Result<std::vector<UniqueFd>> chunks = Chunks(tag_, lease.lease_id());
  GPULEASE_CHECK(chunks.ok(), chunks.error().message);
  return {lease, std::move(*chunks)};
}

Reply<v1::AllocateResponse> RawClient::Await(std::uint64_t lease_id,
                                             std::chrono::milliseconds timeout) {
  v1::AwaitRequest request;
  request.set_session_id(session_id_);
  request.set_push_tag(++tag_);
  request.set_lease_id(lease_id);
  return Call(&v1::LeaseService::StubInterface::Await, request, timeout);
}

Reply<v1::OpenResponse> RawClient::Open(const std::string& name, v1::Access access) {
  v1::OpenRequest request;
  request.set_session_id(session_id_);
  request.set_push_tag(++tag_);
  request.set_name(name);
  request.set_access(access);
  return Call(&v1::LeaseService::StubInterface::Open, request);
}

Reply<v1::OpenResponse> RawClient::Open(std::uint64_t lease_id, v1::Access access) {
  v1::OpenRequest request;
  request.set_session_id(session_id_);
  request.set_push_tag(++tag_);
  request.set_lease_id(lease_id);
  request.set_access(access);
  return Call(&v1::LeaseService::StubInterface::Open, request);
}

Reply<v1::ResizeResponse> RawClient::Resize(std::uint64_t lease_id, Bytes size,
                                            std::uint32_t have_chunks, std::uint64_t wait_ms) {
  v1::ResizeRequest request;
  request.set_session_id(session_id_);
  request.set_push_tag(++tag_);
  request.set_lease_id(lease_id);
  request.set_size_bytes(size);
  request.set_have_chunks(have_chunks);
  request.set_wait_ms(wait_ms);
  return Call(&v1::LeaseService::StubInterface::Resize, request);
}

Reply<v1::SuspendResponse> RawClient::Suspend(std::uint64_t lease_id, std::uint32_t have_chunks) {
  v1::SuspendRequest request;
  request.set_session_id(session_id_);
  request.set_lease_id(lease_id);
  request.set_have_chunks(have_chunks);
  return Call(&v1::LeaseService::StubInterface::Suspend, request);
}

Reply<v1::ResumeResponse> RawClient::Resume(std::uint64_t lease_id, std::uint32_t have_chunks,
                                            std::uint64_t wait_ms) {
  v1::ResumeRequest request;
  request.set_session_id(session_id_);
  request.set_push_tag(++tag_);
  request.set_lease_id(lease_id);
  request.set_have_chunks(have_chunks);
  request.set_wait_ms(wait_ms);
  return Call(&v1::LeaseService::StubInterface::Resume, request);
}

Reply<v1::RefreshResponse> RawClient::Refresh(std::uint64_t lease_id, std::uint32_t have_chunks,
                                              bool takes_part) {
  v1::RefreshRequest request;
  request.set_session_id(session_id_);
  request.set_push_tag(++tag_);
  request.set_lease_id(lease_id);
  request.set_have_chunks(have_chunks);
  request.set_takes_part(takes_part);
  return Call(&v1::LeaseService::StubInterface::Refresh, request);
}

Reply<v1::CloseResponse> RawClient::Close(std::uint64_t lease_id) {
  v1::CloseRequest request;
  request.set_session_id(session_id_);
  request.set_lease_id(lease_id);
  return Call(&v1::LeaseService::StubInterface::Close, request);
}

Reply<v1::ReleaseResponse> RawClient::Release(std::uint64_t lease_id, bool force) {
  v1::ReleaseRequest request;
  request.set_session_id(session_id_);
  request.set_lease_id(lease_id);
  request.set_force(force);
  return Call(&v1::LeaseService::StubInterface::Release, request);
}

Reply<v1::GetLeaseResponse> RawClient::GetLease(std::uint64_t lease_id) {
  v1::GetLeaseRequest request;
  request.set_lease_id(lease_id);
  return Call(&v1::LeaseService::StubInterface::GetLease, request);
}

Reply<v1::GetLeaseResponse> RawClient::GetLease(const std::string& name) {
  v1::GetLeaseRequest request;
  request.set_name(name);
  return Call(&v1::LeaseService::StubInterface::GetLease, request);
}

Reply<v1::ListLeasesResponse> RawClient::ListLeases(const v1::ListLeasesRequest& request) {
  return Call(&v1::LeaseService::StubInterface::ListLeases, request);
}

Reply<v1::GetNodeResponse> RawClient::GetNode() {
  return Finish<v1::GetNodeResponse>(std::chrono::seconds(30), [&](auto* context, auto* response) {
    return nodes_->GetNode(context, v1::GetNodeRequest(), response);
  });
}

Reply<v1::ListSessionsResponse> RawClient::ListSessions(const v1::ListSessionsRequest& request) {
  return Finish<v1::ListSessionsResponse>(std::chrono::seconds(30),
                                          [&](auto* context, auto* response) {
                                            return nodes_->ListSessions(context, request, response);
                                          });
}

v1::GetNodeResponse RawClient::Node() {
  Reply<v1::GetNodeResponse> reply = GetNode();
  GPULEASE_CHECK(reply.ok(), Describe(reply.status, reply.detail));
  return std::move(reply.message);
}

}  // namespace gpulease::e2e
