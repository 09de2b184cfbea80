// SPDX-License-Identifier: Apache-2.0
//
// Requests that come in part and then stop: their bytes are the daemon's memory.
#include <gtest/gtest.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/unique_fd.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/sanitized.h"

namespace gpulease::e2e {
namespace {

constexpr std::size_t kMessage = 380 << 10;  // of a request: the daemon takes 384 KiB

// A connection that begins many requests and ends none.
class Flood {
 public:
  explicit Flood(const std::string& path)
      : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    GPULEASE_CHECK(
        connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, path);
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_client_new(&session_, callbacks, this);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, nullptr, 0);
  }
  ~Flood() { nghttp2_session_del(session_); }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  void Begin() {
    static const char* const headers[][2] = {{":method", "POST"},
                                             {":scheme", "http"},
                                             {":path", "/gpulease.v1.LeaseService/Allocate"},
                                             {":authority", "localhost"},
                                             {"te", "trailers"},
                                             {"content-type", "application/grpc"}};
    std::vector<nghttp2_nv> fields;
    for (const auto& [name, value] : headers) {
      fields.push_back({reinterpret_cast<std::uint8_t*>(const_cast<char*>(name)),
                        reinterpret_cast<std::uint8_t*>(const_cast<char*>(value)),
                        std::strlen(name), std::strlen(value), NGHTTP2_NV_FLAG_NONE});
    }
    auto& sent = sent_.emplace_back(std::make_unique<std::size_t>(0));
    nghttp2_data_provider body{};
    body.source.ptr = sent.get();
    body.read_callback = [](nghttp2_session*, std::int32_t, std::uint8_t* buffer, std::size_t size,
                            std::uint32_t*, nghttp2_data_source* source, void*) -> ssize_t {
      auto& done = *static_cast<std::size_t*>(source->ptr);
      const std::size_t part = std::min(size, kMessage - 1 - std::min(done, kMessage - 1));
      if (part == 0) return NGHTTP2_ERR_DEFERRED;
      std::memset(buffer, 'x', part);
      if (done == 0) {
        const std::uint32_t length = __builtin_bswap32(kMessage);
        buffer[0] = 0;
        std::memcpy(buffer + 1, &length, sizeof length);
      }
      done += part;
      return static_cast<ssize_t>(part);
    };
    nghttp2_submit_request(session_, nullptr, fields.data(), fields.size(), &body, nullptr);
  }
  // Sends and receives what can be. False when the daemon has closed.
  bool Run() {
    const std::uint8_t* bytes = nullptr;
    for (ssize_t size; (size = nghttp2_session_mem_send(session_, &bytes)) > 0;) {
      while (size > 0) {
        const ssize_t part =
            send(socket_.get(), bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL);
        if (part <= 0) return false;
        bytes += part;
        size -= part;
      }
      if (!Receive()) return false;
    }
    return Receive();
  }
  std::size_t sent() const {
    std::size_t all = 0;
    for (const auto& part : sent_) all += *part;
    return all;
  }

 private:
  bool Receive() {
    std::uint8_t buffer[64 << 10];
    for (;;) {
      const ssize_t size = recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (size < 0) return errno == EAGAIN;
      if (size == 0) return false;
      if (nghttp2_session_mem_recv(session_, buffer, static_cast<std::size_t>(size)) < 0)
        return false;
    }
  }

  UniqueFd socket_;
  nghttp2_session* session_ = nullptr;
  std::vector<std::unique_ptr<std::size_t>> sent_;
};

TEST(HalfRequestTest, RequestsThatNeverEndDoNotEatTheMachinesMemory) {
  // Seen: four connections of one user made the daemon grow by 2 GiB, and on.
  DaemonProcess daemon;
  std::vector<std::unique_ptr<Flood>> floods;
  for (int i = 0; i < 4; ++i) {
    Flood& flood = *floods.emplace_back(std::make_unique<Flood>(daemon.grpc_socket()));
    for (int request = 0; request < 600; ++request) flood.Begin();
  }
  // Half a GiB for requests, and the daemon's own; a sanitizer keeps what was freed for a while.
  const Bytes most = (kSanitized ? 1600 : 800) * kMiB;
  std::size_t sent = 0;
  static_cast<void>(Eventually(
      [&] {
        const std::size_t before = sent;
        sent = 0;
        std::erase_if(floods, [](const auto& flood) { return !flood->Run(); });
        for (const auto& flood : floods) sent += flood->sent();
        return daemon.resident_bytes() > most || (sent == before && sent > 400 * kMiB);
      },
      std::chrono::seconds(40)));
  EXPECT_LT(daemon.resident_bytes(), most);
  // Others are served, though a call may have to be made again.
  RawClient client(daemon.runtime_dir());
  EXPECT_TRUE(Eventually([&] { return client.GetNode().ok(); }));
  floods.clear();
  EXPECT_TRUE(Eventually([&] { return client.GetNode().ok(); }));
  EXPECT_TRUE(daemon.running());
}

}  // namespace
}  // namespace gpulease::e2e
