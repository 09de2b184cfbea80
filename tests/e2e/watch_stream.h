// SPDX-License-Identifier: Apache-2.0
//
// WatchStream: one Watch call, read as its events come.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/e2e/raw_client.h"

namespace gpulease::e2e {

class WatchStream {
 public:
  WatchStream(RawClient& client, std::uint64_t session_id);
  // Cancels the call if it has not ended.
  ~WatchStream();

  // The next event; nothing when the stream has ended or none came in time.
  std::optional<v1::Event> Next();
  // Skips events until one of `type`.
  std::optional<v1::Event> Next(v1::Event::Type type);
  // Waits for the stream's end.
  Reply<v1::Event> End();

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderInterface<v1::Event>> reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::Event> events_;
  bool ended_ = false;
  grpc::Status status_;
  std::thread thread_;
};

}  // namespace gpulease::e2e
