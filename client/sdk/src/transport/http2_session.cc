// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/transport/http2_session.h"

#include <nghttp2/nghttp2.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "client/sdk/src/transport/grpc_status.h"

namespace gpulease {
namespace {

// A 4 MiB reply takes 22 ms with the default windows of 64 KiB, and 4 with large ones.
constexpr std::int32_t kWindowBytes = 32 << 20;
constexpr std::uint32_t kMaxFrameBytes = 1 << 20;
constexpr std::uint32_t kMaxHeaderListBytes = 64 << 10;

nghttp2_nv Header(std::string_view name, std::string_view value, std::uint8_t flags) {
  return {reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())), name.size(),
          value.size(), flags};
}

// gRPC's form of a time left: at most 8 digits and a unit.
std::string TimeoutText(std::chrono::nanoseconds timeout) {
  const std::int64_t micros = std::max<std::int64_t>(
      1, std::chrono::duration_cast<std::chrono::microseconds>(timeout).count());
  if (micros < 100'000'000) return std::to_string(micros) + "u";
  if (micros / 1000 < 100'000'000) return std::to_string(micros / 1000) + "m";
  return std::to_string(std::min<std::int64_t>(micros / 1'000'000, 99'999'999)) + "S";
}

}  // namespace

void SignalEvent(int notify) {
  const std::uint64_t one = 1;
  if (notify >= 0) [[maybe_unused]]
    const auto written = write(notify, &one, sizeof one);
}

struct Http2Session::State {
  nghttp2_session* session = nullptr;
  std::unordered_map<std::int32_t, Exchange*> exchanges;
  std::string why;

  static State& Of(void* user) { return *static_cast<State*>(user); }

  Exchange* Find(std::int32_t id) {
    auto at = exchanges.find(id);
    return at == exchanges.end() ? nullptr : at->second;
  }

  void Finish(Exchange& exchange) {
    exchanges.erase(exchange.id);
    exchange.finished = true;
    SignalEvent(exchange.notify);
  }

  // The response cannot be used: say so, and let the server stop.
  void Break(Exchange& exchange, std::string because) {
    exchange.broken = std::move(because);
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, exchange.id, NGHTTP2_CANCEL);
    Finish(exchange);
  }

  void Take(Exchange& exchange, const char* bytes, std::size_t size) {
    exchange.buffer.append(bytes, size);
    if (!exchange.stream) {
      if (exchange.buffer.size() > kMaxReplyBytes + 5) {
        Break(exchange, "the reply is larger than " + FormatBytes(kMaxReplyBytes));
      }
      return;
    }
    while (exchange.buffer.size() >= 5) {
      std::uint32_t length;
      std::memcpy(&length, exchange.buffer.data() + 1, sizeof length);
      length = __builtin_bswap32(length);
      if (length > kMaxReplyBytes || exchange.buffer[0] != 0) {
        Break(exchange, "a message of the stream is compressed or too large");
        return;
      }
      if (exchange.buffer.size() < 5 + std::size_t{length}) return;
      if (exchange.messages.size() < kMaxStreamMessages) {
        exchange.messages.push_back(exchange.buffer.substr(5, length));
      } else {
        exchange.overflow = true;
      }
      exchange.buffer.erase(0, 5 + std::size_t{length});
      SignalEvent(exchange.notify);
    }
  }
};

namespace {

using State = Http2Session::State;

int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name_bytes,
             std::size_t name_size, const std::uint8_t* value_bytes, std::size_t value_size,
             std::uint8_t, void* user) {
  Exchange* exchange = State::Of(user).Find(frame->hd.stream_id);
  if (!exchange) return 0;
  const std::string_view name(reinterpret_cast<const char*>(name_bytes), name_size);
  const std::string_view value(reinterpret_cast<const char*>(value_bytes), value_size);
  if (name == ":status") {
    exchange->http_status = value;
  } else if (name == "grpc-status") {
    if (std::from_chars(value.data(), value.data() + value.size(), exchange->grpc_status).ec !=
        std::errc{}) {
      exchange->grpc_status = static_cast<int>(Code::kUnknown);
    }
  } else if (name == "grpc-message") {
    exchange->grpc_message = value;
  } else if (name == "grpc-status-details-bin") {
    exchange->grpc_details = value;
  } else if (name == "gpulease-instance") {
    exchange->instance = value;
  }
  return 0;
}

int OnData(nghttp2_session*, std::uint8_t, std::int32_t id, const std::uint8_t* bytes,
           std::size_t size, void* user) {
  State& state = State::Of(user);
  if (Exchange* exchange = state.Find(id)) {
    state.Take(*exchange, reinterpret_cast<const char*>(bytes), size);
  }
  return 0;
}

int OnClose(nghttp2_session*, std::int32_t id, std::uint32_t error, void* user) {
  State& state = State::Of(user);
  Exchange* exchange = state.Find(id);
  if (!exchange) return 0;
  if (error == NGHTTP2_REFUSED_STREAM) {
    exchange->refused = true;
    exchange->lost = true;
    exchange->lost_because = "the daemon refused the call before it looked at it";
  } else if (error != NGHTTP2_NO_ERROR && exchange->grpc_status < 0) {
    exchange->broken = std::string("the daemon reset the call: ") + nghttp2_http2_strerror(error);
  }
  state.Finish(*exchange);
  return 0;
}

int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
  if (frame->hd.type == NGHTTP2_GOAWAY) {
    State& state = State::Of(user);
    state.why = "the daemon ends the connection";
    if (frame->goaway.opaque_data_len > 0) {
      state.why += ": " + std::string(reinterpret_cast<const char*>(frame->goaway.opaque_data),
                                      frame->goaway.opaque_data_len);
    }
  }
  return 0;
}

// The frame of the response is one that nghttp2 cannot take: it has reset the stream.
int OnInvalidFrame(nghttp2_session*, const nghttp2_frame* frame, int error, void* user) {
  if (Exchange* exchange = State::Of(user).Find(frame->hd.stream_id)) {
    exchange->broken = std::string("the reply breaks HTTP/2: ") + nghttp2_strerror(error);
  }
  return 0;
}

ssize_t ReadRequest(nghttp2_session*, std::int32_t, std::uint8_t* buffer, std::size_t size,
                    std::uint32_t* flags, nghttp2_data_source* source, void*) {
  auto* exchange = static_cast<Exchange*>(source->ptr);
  const std::size_t part = std::min(size, exchange->request.size() - exchange->request_sent);
  std::memcpy(buffer, exchange->request.data() + exchange->request_sent, part);
  exchange->request_sent += part;
  if (exchange->request_sent == exchange->request.size()) *flags |= NGHTTP2_DATA_FLAG_EOF;
  return static_cast<ssize_t>(part);
}

}  // namespace

Status Exchange::Outcome() const {
  if (lost) return MakeError(Code::kUnavailable, Reason::kUnspecified, lost_because);
  if (!broken.empty()) return MakeError(Code::kInternal, Reason::kUnspecified, broken);
  if (grpc_status > 0) return GrpcError(grpc_status, grpc_message, grpc_details);
  if (grpc_status < 0) {
    return MakeError(Code::kInternal, Reason::kUnspecified,
                     "the reply is no gRPC: HTTP status " +
                         (http_status.empty() ? std::string("none") : http_status) +
                         " and no grpc-status");
  }
  if (stream) return {};
  std::uint32_t length = 0;
  if (buffer.size() >= 5) std::memcpy(&length, buffer.data() + 1, sizeof length);
  if (buffer.size() < 5 || buffer[0] != 0 || buffer.size() != 5 + __builtin_bswap32(length)) {
    return MakeError(Code::kInternal, Reason::kUnspecified,
                     "the reply is not one uncompressed gRPC message");
  }
  return {};
}

Http2Session::Http2Session() : state_(std::make_unique<State>()) {
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_session_callbacks_new(&callbacks);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, OnHeader);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, OnData);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, OnClose);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, OnFrame);
  nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, OnInvalidFrame);
  // gRPC's headers are gRPC's business: nghttp2 would refuse a `grpc-message` that ends in a space.
  nghttp2_option* options = nullptr;
  nghttp2_option_new(&options);
  nghttp2_option_set_no_http_messaging(options, 1);
  nghttp2_session_client_new2(&state_->session, callbacks, state_.get(), options);
  nghttp2_option_del(options);
  nghttp2_session_callbacks_del(callbacks);
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kWindowBytes},
      {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kMaxFrameBytes},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kMaxHeaderListBytes},
  };
  nghttp2_submit_settings(state_->session, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  nghttp2_session_set_local_window_size(state_->session, NGHTTP2_FLAG_NONE, 0, kWindowBytes);
}

Http2Session::~Http2Session() { nghttp2_session_del(state_->session); }

bool Http2Session::accepts_calls() const {
  return nghttp2_session_check_request_allowed(state_->session) != 0;
}

bool Http2Session::Start(Exchange& exchange, std::string_view path,
                         std::chrono::nanoseconds timeout) {
  constexpr std::uint8_t kStatic = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE;
  const std::string timeout_text = TimeoutText(timeout);
  const nghttp2_nv headers[] = {
      Header(":method", "POST", kStatic),
      Header(":scheme", "http", kStatic),
      Header(":path", path, kStatic),
      Header(":authority", "localhost", kStatic),
      Header("te", "trailers", kStatic),
      Header("content-type", "application/grpc", kStatic),
      Header("user-agent", "libgpulease", kStatic),
      // Every call has another: not worth an entry in the table of headers.
      Header("grpc-timeout", timeout_text, NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_INDEX),
  };
  const std::size_t count =
      timeout == std::chrono::nanoseconds::max() ? std::size(headers) - 1 : std::size(headers);
  nghttp2_data_provider body{};
  body.source.ptr = &exchange;
  body.read_callback = ReadRequest;
  exchange.id = nghttp2_submit_request(state_->session, nullptr, headers, count, &body, nullptr);
  if (exchange.id < 0) return false;
  state_->exchanges.emplace(exchange.id, &exchange);
  return true;
}

void Http2Session::Abandon(Exchange& exchange) {
  if (exchange.finished || exchange.id < 0) return;
  state_->exchanges.erase(exchange.id);
  exchange.finished = true;
  // The reset goes out before any part of the request that is still waiting: nghttp2 reads no more
  // of it once Collect() has run, which the caller does at once.
  nghttp2_submit_rst_stream(state_->session, NGHTTP2_FLAG_NONE, exchange.id, NGHTTP2_CANCEL);
}

bool Http2Session::Receive(const char* bytes, std::size_t size) {
  const ssize_t taken =
      nghttp2_session_mem_recv(state_->session, reinterpret_cast<const std::uint8_t*>(bytes), size);
  if (taken < 0) {
    state_->why = std::string("the daemon's bytes are no HTTP/2: ") +
                  nghttp2_strerror(static_cast<int>(taken));
    return false;
  }
  return true;
}

void Http2Session::Collect(std::string& out) {
  for (;;) {
    const std::uint8_t* bytes = nullptr;
    const ssize_t size = nghttp2_session_mem_send(state_->session, &bytes);
    if (size <= 0) return;
    out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
  }
}

bool Http2Session::over() const {
  return !nghttp2_session_want_read(state_->session) &&
         !nghttp2_session_want_write(state_->session);
}

void Http2Session::FinishAll(const std::string& why) {
  if (state_->why.empty()) state_->why = why;
  while (!state_->exchanges.empty()) {
    Exchange& exchange = *state_->exchanges.begin()->second;
    exchange.lost = exchange.lost || exchange.grpc_status < 0;
    if (exchange.lost_because.empty()) {
      exchange.lost_because = "the connection to the daemon was lost: " + why;
    }
    state_->Finish(exchange);
  }
}

const std::string& Http2Session::why() const { return state_->why; }

}  // namespace gpulease
