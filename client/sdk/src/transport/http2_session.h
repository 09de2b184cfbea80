// SPDX-License-Identifier: Apache-2.0
//
// Http2Session: the bytes of HTTP/2 and gRPC, in and out, of one connection. No I/O, no lock, no
// clock: bytes that were read go in, bytes to be written come out, exchanges change on the way.
//
// Invariant: an exchange that is finished is not touched again, and may be destroyed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "client/sdk/src/transport/channel.h"

namespace gpulease {

// One call: its request and what has come back so far.
struct Exchange {
  std::int32_t id = -1;
  std::string request;
  std::size_t request_sent = 0;

  std::string http_status;
  int grpc_status = -1;  // -1: none came
  std::string grpc_message;
  std::string grpc_details;
  std::string instance;

  std::string buffer;                // response bytes not yet cut into messages
  bool stream = false;               // keeps messages apart and bounded
  std::deque<std::string> messages;  // of a stream
  bool overflow = false;
  int notify = -1;  // an eventfd to signal, of a stream

  bool finished = false;
  bool refused = false;  // the server did not process it
  bool lost = false;     // the connection ended before it did
  std::string broken;    // why the response cannot be used
  std::string lost_because;

  // How it ended; the message stays where it is.
  Status Outcome() const;
};

// Makes the eventfd readable; nothing for -1.
void SignalEvent(int notify);

class Http2Session {
 public:
  // A stream keeps at most this many unread messages.
  static constexpr std::size_t kMaxStreamMessages = 1024;

  Http2Session();
  ~Http2Session();
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  // False when the peer wants no more calls (GOAWAY) or the session is over.
  bool accepts_calls() const;
  // Starts an exchange, which stays where it is until it is finished or abandoned.
  bool Start(Exchange& exchange, std::string_view path, std::chrono::nanoseconds timeout);
  // Cancels it; nothing happens to it any more.
  void Abandon(Exchange& exchange);

  // Bytes from the peer. False: they are no HTTP/2; why() says it.
  bool Receive(const char* bytes, std::size_t size);
  // Appends what is to be written.
  void Collect(std::string& out);
  // After Collect(): neither side has anything more to say. A reply that breaks HTTP/2 (a header of
  // more than 64 KiB, say) ends the session so, without an error in between.
  bool over() const;
  // The connection is lost: finishes every exchange.
  void FinishAll(const std::string& why);
  const std::string& why() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace gpulease
