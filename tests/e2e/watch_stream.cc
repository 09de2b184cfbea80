// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/watch_stream.h"

#include "tests/e2e/eventually.h"

namespace gpulease::e2e {

WatchStream::WatchStream(RawClient& client, std::uint64_t session_id) {
  v1::WatchRequest request;
  request.set_session_id(session_id);
  reader_ = client.leases().Watch(&context_, request);
  thread_ = std::thread([this] {
    v1::Event event;
    while (reader_->Read(&event)) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
      changed_.notify_all();
    }
    grpc::Status status = reader_->Finish();
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    ended_ = true;
    changed_.notify_all();
  });
}

WatchStream::~WatchStream() {
  context_.TryCancel();
  thread_.join();
}

std::optional<v1::Event> WatchStream::Next() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kPatience, [this] { return !events_.empty() || ended_; });
  if (events_.empty()) return std::nullopt;
  v1::Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

std::optional<v1::Event> WatchStream::Next(v1::Event::Type type) {
  for (;;) {
    std::optional<v1::Event> event = Next();
    if (!event || event->type() == type) return event;
  }
}

Reply<v1::Event> WatchStream::End() {
  Reply<v1::Event> reply;
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [this] { return ended_; })) {
    reply.status = grpc::Status(grpc::StatusCode::UNKNOWN, "the stream has not ended");
    return reply;
  }
  reply.status = status_;
  reply.has_detail = ParseDetail(status_, &reply.detail);
  return reply;
}

}  // namespace gpulease::e2e
