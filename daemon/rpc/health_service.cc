// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/health_service.h"

namespace gpulease::rpc {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthCheckResponse::ServingStatus StatusOf(const std::string& service, bool admits) {
  const bool known = service.empty() || service == "gpulease.v1.LeaseService" ||
                     service == "gpulease.v1.NodeService";
  if (!known) return HealthCheckResponse::SERVICE_UNKNOWN;
  return admits ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

// A stream of one message: the status does not change before the connection ends.
class HealthWatch final : public WaitingCall {
 public:
  static void Listen(const Services& services, Health::AsyncService& async,
                     grpc::ServerCompletionQueue& queue) {
    const std::shared_ptr<HealthWatch> call(new HealthWatch(services, async, queue));
    async.RequestWatch(&call->context_, &call->request_, &call->writer_, &queue, &queue,
                       call->ListenTag());
  }

 private:
  HealthWatch(const Services& services, Health::AsyncService& async,
              grpc::ServerCompletionQueue& queue)
      : WaitingCall(services), async_(async), queue_(queue), writer_(&context_) {}
  void Arrive() override {
    Listen(services_, async_, queue_);
    HealthCheckResponse response;
    response.set_status(StatusOf(request_.service(), services_.broker.admits()));
    writer_.Write(response, NewTag([](WaitingCall&, bool) {}));
  }
  void End() override {
    writer_.Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the watcher is gone"),
                   NewTag([](WaitingCall&, bool) {}));
  }

  Health::AsyncService& async_;
  grpc::ServerCompletionQueue& queue_;
  HealthCheckRequest request_;
  grpc::ServerAsyncWriter<HealthCheckResponse> writer_;
};

}  // namespace

void HealthService::Listen(grpc::ServerCompletionQueue& queue) {
  ListenUnary(services_, async_, queue, &Health::AsyncService::RequestCheck,
              [this](grpc::ServerContext& context, const HealthCheckRequest& request,
                     HealthCheckResponse& response) {
                return Serve(services_, context, [&](const peers::Peer&) -> Status {
                  response.set_status(StatusOf(request.service(), services_.broker.admits()));
                  if (response.status() != HealthCheckResponse::SERVICE_UNKNOWN) return {};
                  return MakeError(Code::kNotFound, Reason::kBadField,
                                   "service: there is no service \"" + request.service() + "\"");
                });
              });
  HealthWatch::Listen(services_, async_, queue);
}

}  // namespace gpulease::rpc
