// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/node_service.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace gpulease::rpc {
namespace {

Bytes ResidentBytes() {
  std::ifstream stream("/proc/self/statm");
  Bytes size = 0, resident = 0;
  stream >> size >> resident;
  return resident * static_cast<Bytes>(sysconf(_SC_PAGESIZE));
}

std::uint32_t OpenDescriptors() {
  // Since Linux 6.2 the folder's size says it; to list it takes milliseconds where many are open.
  struct stat status;
  if (stat("/proc/self/fd", &status) == 0 && status.st_size > 0)
    return static_cast<std::uint32_t>(status.st_size);
  std::uint32_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count > 3 ? count - 3 : 0;  // ".", "..", and the folder's own
}

}  // namespace

void NodeService::Listen(grpc::ServerCompletionQueue& queue) {
  using Async = v1::NodeService::AsyncService;
  ListenUnary(services_, async_, queue, &Async::RequestGetNode,
              [this](grpc::ServerContext& context, const v1::GetNodeRequest&,
                     v1::GetNodeResponse& response) {
                return Serve(services_, context,
                             [&](const peers::Peer&) { return GetNode(response); });
              });
  ListenUnary(services_, async_, queue, &Async::RequestListSessions,
              [this](grpc::ServerContext& context, const v1::ListSessionsRequest& request,
                     v1::ListSessionsResponse& response) {
                return Serve(services_, context, [&](const peers::Peer& peer) {
                  return ListSessions(peer, request, response);
                });
              });
  ListenUnary(services_, async_, queue, &Async::RequestGetBudget,
              [this](grpc::ServerContext& context, const v1::GetBudgetRequest&,
                     v1::GetBudgetResponse& response) {
                return Serve(services_, context, [&](const peers::Peer& peer) -> Status {
                  ToProto(services_.broker.Budget(peer), &response);
                  return {};
                });
              });
  ListenUnary(services_, async_, queue, &Async::RequestDrain,
              [this](grpc::ServerContext& context, const v1::DrainRequest& request,
                     v1::DrainResponse& response) {
                return Serve(services_, context, [&](const peers::Peer& peer) {
                  return Drain(peer, request, response);
                });
              });
  ListenUnary(services_, async_, queue, &Async::RequestUndrain,
              [this](grpc::ServerContext& context, const v1::UndrainRequest& request,
                     v1::UndrainResponse&) {
                return Serve(services_, context, [&](const peers::Peer& peer) {
                  return services_.broker.Undrain(peer, request.gpu_uuid());
                });
              });
}

Status NodeService::GetNode(v1::GetNodeResponse& response) {
  ToProto(services_.broker.Node(), &response);
  response.set_version(facts_.version);
  response.set_instance(services_.instance);
  response.set_uptime_ms(
      std::chrono::duration_cast<std::chrono::milliseconds>(BootClock::now() - facts_.started)
          .count());
  response.set_simulated(facts_.simulated);
  response.set_descriptors_used(OpenDescriptors());
  response.set_descriptors_limit(facts_.descriptors_limit);
  response.set_driver_version(facts_.driver_version);
  response.set_resident_bytes(ResidentBytes());
  return {};
}

Status NodeService::Drain(const peers::Peer& peer, const v1::DrainRequest& request,
                          v1::DrainResponse& response) {
  using Mode = broker::Broker::DrainMode;
  Mode mode = Mode::kWait;
  switch (request.mode()) {
    case v1::DRAIN_MODE_UNSPECIFIED:
    case v1::DRAIN_MODE_WAIT:
      break;
    case v1::DRAIN_MODE_ASK:
      mode = Mode::kAsk;
      break;
    case v1::DRAIN_MODE_END:
      mode = Mode::kEnd;
      break;
    default:
      return MakeError(Code::kInvalidArgument, Reason::kBadField,
                       "mode: " + std::to_string(request.mode()) + " is not known");
  }
  const Result<std::size_t> left = services_.broker.Drain(peer, request.gpu_uuid(), mode);
  if (!left.ok()) return left.error();
  response.set_lease_count(static_cast<std::uint32_t>(*left));
  return {};
}

Status NodeService::ListSessions(const peers::Peer& peer, const v1::ListSessionsRequest& request,
                                 v1::ListSessionsResponse& response) {
  const Result<std::uint64_t> after = ToPageStart(request.page_token());
  if (!after.ok()) return after.error();
  const std::size_t most = ToPageSize(request.page_size());
  const std::vector<ledger::Session> sessions =
      services_.broker.ListSessions(peer, ledger::SessionId{*after}, most);
  for (const ledger::Session& session : sessions)
    ToProto(session, services_.users, response.add_sessions());
  if (sessions.size() == most)
    response.set_next_page_token(std::to_string(sessions.back().id.value));
  return {};
}

}  // namespace gpulease::rpc
