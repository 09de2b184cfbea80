// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/watch_call.h"

namespace gpulease::rpc {

grpc::ServerWriteReactor<v1::Event>* WatchCall::Start(const Services& services,
                                                      grpc::CallbackServerContext& context,
                                                      const v1::WatchRequest& request) {
  const std::shared_ptr<WatchCall> call(new WatchCall(services));
  call->self_ = call;
  const grpc::Status status = Serve(services, context, [&](const peers::Peer& peer) -> Status {
    const ledger::SessionId session{request.session_id()};
    if (session) {
      GPULEASE_RETURN_IF_ERROR(services.broker.CheckSession(peer, session));
    } else if (!services.broker.IsAdministrator(peer)) {
      return MakeError(Code::kPermissionDenied, Reason::kUnspecified,
                       "all sessions' events are for administrators; give session_id for your own");
    }
    const std::uint64_t subscription = services.broker.events().Subscribe(
        session, [call](const broker::Event& event) { call->Add(event); });
    bool ended;
    {
      MutexLock lock(call->mutex_);
      call->subscription_ = subscription;
      ended = call->ended_;
    }
    if (ended) services.broker.events().Unsubscribe(subscription);
    return {};
  });
  if (!status.ok()) call->End(status);
  return call.get();
}

void WatchCall::Add(const broker::Event& event) {
  MutexLock lock(mutex_);
  if (ended_ || last_words_) return;
  if (queue_.size() >= kMostQueued) {
    queue_.clear();
    broker::Event lost;
    lost.type = broker::Event::Type::kLostEvents;
    lost.sequence = event.sequence;
    lost.message = "the reader was too slow: read the state anew";
    ToProto(lost, &queue_.emplace_back());
  }
  ToProto(event, &queue_.emplace_back());
  if (event.type == broker::Event::Type::kStopping) {
    last_words_ = ToGrpc(MakeError(Code::kUnavailable, Reason::kStopping,
                                   "the daemon is about to stop: retry when it is back"));
  }
  if (!in_flight_) Write();
}

void WatchCall::Write() {
  writing_ = std::move(queue_.front());
  queue_.pop_front();
  in_flight_ = true;
  StartWrite(&writing_);
}

void WatchCall::End(grpc::Status status) {
  std::uint64_t subscription;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    subscription = subscription_;
  }
  if (subscription != 0) services_.broker.events().Unsubscribe(subscription);
  Finish(std::move(status));
}

void WatchCall::OnWriteDone(bool ok) {
  grpc::Status status(grpc::StatusCode::CANCELLED, "the reader is gone");
  {
    MutexLock lock(mutex_);
    in_flight_ = false;
    if (ended_) return;
    if (ok && !queue_.empty()) return Write();
    if (ok && !last_words_) return;
    if (ok) status = *last_words_;
  }
  End(std::move(status));
}

void WatchCall::OnCancel() { End(grpc::Status(grpc::StatusCode::CANCELLED, "the reader is gone")); }

void WatchCall::OnDone() { const std::shared_ptr<WatchCall> last = std::move(self_); }

}  // namespace gpulease::rpc
