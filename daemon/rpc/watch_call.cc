// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/watch_call.h"

namespace gpulease::rpc {

void WatchCall::Listen(const Services& services, v1::LeaseService::AsyncService& async,
                       grpc::ServerCompletionQueue& queue) {
  const std::shared_ptr<WatchCall> call(new WatchCall(services, async, queue));
  async.RequestWatch(&call->context_, &call->request_, &call->writer_, &queue, &queue,
                     call->ListenTag());
}

void WatchCall::Arrive() {
  Listen(services_, async_, queue_);
  const grpc::Status status =
      Serve(services_, context_, [&](const peers::Peer& peer) { return Subscribe(peer); });
  if (status.ok()) return;
  MutexLock lock(mutex_);
  Finish(status);
}

Status WatchCall::Subscribe(const peers::Peer& peer) {
  const ledger::SessionId session{request_.session_id()};
  if (session) {
    GPULEASE_RETURN_IF_ERROR(services_.broker.CheckSession(peer, session));
  } else if (!services_.broker.IsObserver(peer)) {
    return MakeError(
        Code::kPermissionDenied, Reason::kUnspecified,
        "session_id: 0 is all sessions' events, for operators and administrators; give your "
        "session's for your own");
  }
  const auto self = std::static_pointer_cast<WatchCall>(shared_from_this());
  const Result<std::uint64_t> subscription = services_.broker.events().Subscribe(
      ledger::AccountOf(peer.user), session,
      [self](const std::shared_ptr<const broker::Event>& event) { self->Add(event); });
  if (!subscription.ok()) return subscription.error();
  bool ended;
  {
    MutexLock lock(mutex_);
    subscription_ = *subscription;
    ended = ended_;
  }
  if (ended) services_.broker.events().Unsubscribe(*subscription);
  // It may have ended before there was anybody to tell.
  if (session && !services_.broker.CheckSession(peer, session).ok()) {
    broker::Event over;
    over.type = broker::Event::Type::kSessionEnded;
    Add(std::make_shared<const broker::Event>(std::move(over)));
  }
  return {};
}

void WatchCall::Add(const std::shared_ptr<const broker::Event>& event) {
  MutexLock lock(mutex_);
  if (finished_ || ended_ || last_words_) return;
  if (event->type == broker::Event::Type::kSessionEnded) {
    last_words_ = ToGrpc(MakeError(Code::kFailedPrecondition, Reason::kSessionEnded,
                                   "the session that is watched is over: connect anew"));
    if (!writing_) Finish(*last_words_);
    return;
  }
  if (events_.size() >= kMostQueued) {
    events_.clear();
    broker::Event lost;
    lost.type = broker::Event::Type::kLostEvents;
    lost.sequence = event->sequence;
    lost.message = "the reader was too slow: read the state anew";
    events_.push_back(std::make_shared<const broker::Event>(std::move(lost)));
  }
  events_.push_back(event);
  if (event->type == broker::Event::Type::kStopping) {
    last_words_ = ToGrpc(MakeError(Code::kUnavailable, Reason::kStopping,
                                   "the daemon is about to stop: retry when it is back"));
  }
  if (!writing_) Next();
}

void WatchCall::Next() {
  writing_ = true;
  v1::Event event;
  ToProto(*events_.front(), &event);
  events_.pop_front();
  // gRPC has the bytes when Write returns.
  writer_.Write(
      event, NewTag([](WaitingCall& call, bool ok) { static_cast<WatchCall&>(call).Written(ok); }));
}

void WatchCall::Written(bool ok) {
  MutexLock lock(mutex_);
  writing_ = false;
  if (!ok || ended_) {
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the reader is gone"));
  } else if (!events_.empty()) {
    Next();
  } else if (last_words_) {
    Finish(*last_words_);
  }
}

void WatchCall::Finish(const grpc::Status& status) {
  if (std::exchange(finished_, true)) return;
  writer_.Finish(status, NewTag([](WaitingCall&, bool) {}));
}

void WatchCall::End() {
  std::uint64_t subscription;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    subscription = subscription_;
    if (!writing_) Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the reader is gone"));
  }
  // Outside the lock: the hub calls Add under its own.
  if (subscription != 0) services_.broker.events().Unsubscribe(subscription);
}

}  // namespace gpulease::rpc
