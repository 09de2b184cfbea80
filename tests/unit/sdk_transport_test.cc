// SPDX-License-Identifier: Apache-2.0
//
// The SDK's HTTP/2 against a stock gRPC server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "client/sdk/codec/codec.h"
#include "client/sdk/src/session/handle_socket.h"
#include "client/sdk/src/transport/channel.h"
#include "client/sdk/src/transport/grpc_status.h"
#include "client/sdk/src/transport/http2_session.h"
#include "gpulease/v1/lease.wire.h"
#include "gpulease/v1/node.wire.h"
#include "tests/fakes/fake_daemon.h"
#include "tests/unit/scratch_dir.h"

namespace gpulease {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

class TransportTest : public testing::Test {
 protected:
  void SetUp() override {
    auto channel = Channel::Connect(scratch_.path() + "/gpulease.sock");
    ASSERT_TRUE(channel.ok()) << channel.error().message;
    channel_ = *channel;
  }

  Reply GetNode(Channel& channel, milliseconds timeout = seconds(20)) {
    return channel.Call(wire::GetNodeMethod::kPath, {}, steady_clock::now() + timeout, nullptr);
  }

  ScratchDir scratch_;
  fakes::FakeDaemon daemon_{scratch_.path()};
  std::shared_ptr<Channel> channel_;
};

TEST_F(TransportTest, CallsAndReadsReplyAndInstance) {
  daemon_.Change([](auto& behaviour) { behaviour.reply_bytes = 5; });
  Reply reply = GetNode(*channel_);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error().message;
  EXPECT_EQ(reply.instance, daemon_.instance());
  auto node = wire::Decode<wire::GetNodeResponse>(reply.message);
  ASSERT_TRUE(node.ok());
  EXPECT_EQ(node->version, "vvvvv");
}

TEST_F(TransportTest, TakesErrorsWithTheirSentenceAndDetails) {
  daemon_.Change([](auto& behaviour) {
    behaviour.error_code = 14;
    behaviour.error_message = "GPU-3f2a: 100% asked, für Ä; 12.0 GiB free\n";
  });
  Reply reply = GetNode(*channel_);
  ASSERT_FALSE(reply.status.ok());
  const Error& error = reply.status.error();
  EXPECT_FALSE(reply.lost) << "an answer is no lost connection";
  EXPECT_EQ(error.code, Code::kUnavailable);
  EXPECT_EQ(error.message, "GPU-3f2a: 100% asked, für Ä; 12.0 GiB free\n");
  EXPECT_EQ(error.reason, Reason::kMemoryShort);
  EXPECT_EQ(error.requested_bytes, 64u);
  EXPECT_EQ(error.available_bytes, 16u);
  ASSERT_EQ(error.blockers.size(), 1u);
  EXPECT_EQ(error.blockers[0].lease_id, 17u);
  EXPECT_EQ(error.blockers[0].pid, 4211);
}

TEST_F(TransportTest, TakesSentencesThatEndInASpace) {
  // Seen: "the reply breaks HTTP/2: Invalid HTTP header field was received" in place of the error.
  daemon_.Change([](auto& behaviour) {
    behaviour.error_code = 5;
    behaviour.error_message = "no lease named ";
  });
  Reply reply = GetNode(*channel_);
  ASSERT_FALSE(reply.status.ok());
  EXPECT_EQ(reply.status.error().message, "no lease named ");
}

TEST_F(TransportTest, SaysWhichCallTheDaemonDoesNotKnow) {
  Reply reply = channel_->Call("/gpulease.v1.NodeService/Newer", {},
                               steady_clock::now() + seconds(20), nullptr);
  ASSERT_FALSE(reply.status.ok());
  EXPECT_EQ(reply.status.error().code, Code::kUnimplemented);
}

TEST_F(TransportTest, EndsACallAtItsDeadlineAndTellsTheServer) {
  daemon_.Change([](auto& behaviour) { behaviour.hang = true; });
  Reply reply = GetNode(*channel_, milliseconds(30));
  ASSERT_FALSE(reply.status.ok());
  EXPECT_EQ(reply.status.error().code, Code::kDeadlineExceeded);
  EXPECT_TRUE(daemon_.WaitFor([](const auto& seen) { return seen.cancelled == 1; }));
  daemon_.Change([](auto& behaviour) { behaviour.hang = false; });
  EXPECT_TRUE(GetNode(*channel_).status.ok()) << "the connection is as good as before";
}

TEST_F(TransportTest, TakesLargeRepliesAndRefusesTooLargeOnes) {
  daemon_.Change([](auto& behaviour) { behaviour.reply_bytes = 8 << 20; });
  Reply reply = GetNode(*channel_);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error().message;
  EXPECT_GT(reply.message.size(), std::size_t{8} << 20);
  daemon_.Change([](auto& behaviour) { behaviour.reply_bytes = kMaxReplyBytes + 1; });
  reply = GetNode(*channel_);
  ASSERT_FALSE(reply.status.ok());
  EXPECT_THAT(reply.status.error().message, HasSubstr("larger than 16.0 MiB"));
  daemon_.Change([](auto& behaviour) { behaviour.reply_bytes = 1; });
  EXPECT_TRUE(GetNode(*channel_).status.ok());
}

TEST_F(TransportTest, SendsRequestsThatAreLargerThanTheWindow) {
  wire::AllocateRequest request;
  request.specs.resize(1);
  request.specs[0].name = std::string(3 << 20, 'n');
  FramedRequest framed;
  request.Append(framed.bytes);
  Reply reply = channel_->Call(wire::AllocateMethod::kPath, std::move(framed),
                               steady_clock::now() + seconds(20), nullptr);
  ASSERT_FALSE(reply.status.ok());
  EXPECT_EQ(reply.status.error().reason, Reason::kSessionEnded) << "the server has read all of it";
}

TEST_F(TransportTest, TakesRepliesWithLongHeaders) {
  daemon_.Change([](auto& behaviour) { behaviour.header_bytes = 100'000; });
  EXPECT_TRUE(GetNode(*channel_).status.ok());
}

// A frame of HTTP/2.
std::string Frame(char type, char flags, std::uint32_t stream, const std::string& payload) {
  std::string frame;
  for (int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift & 0xff);
  frame += type;
  frame += flags;
  for (int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift & 0xff);
  return frame + payload;
}

TEST(Http2SessionTest, EndsInsteadOfHangingOnAHeaderThatIsTooLong) {
  Http2Session session;
  Exchange exchange;
  exchange.request = std::string(5, '\0');
  ASSERT_TRUE(session.Start(exchange, wire::GetNodeMethod::kPath, seconds(1)));
  std::string sent;
  session.Collect(sent);
  // Literal without indexing, name "x", a value of 127 + 200,000 bytes.
  std::string block("\x00\x01x\x7f\xc0\x9a\x0c", 7);
  block += std::string(200'127, 'v');
  constexpr std::size_t kPart = 16'000;
  std::string received = Frame(4, 0, 0, "") + Frame(1, 0, 1, block.substr(0, kPart));
  for (std::size_t at = kPart; at < block.size(); at += kPart) {
    const bool last = at + kPart >= block.size();
    received += Frame(9, last ? 4 : 0, 1, block.substr(at, kPart));
  }
  (void)session.Receive(received.data(), received.size());
  session.Collect(sent);
  EXPECT_TRUE(session.over());
  session.FinishAll("too long");
  EXPECT_TRUE(exchange.finished && exchange.lost);
}

TEST_F(TransportTest, ServesManyThreadsOverOneConnection) {
  std::vector<std::thread> threads;
  std::atomic<int> answered{0};
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 50; ++n) answered += GetNode(*channel_).status.ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, 16 * 50);
}

TEST_F(TransportTest, DeliversAStreamBesideCalls) {
  auto handles = HandleSocket::Connect({.path = scratch_.path() + "/handles.sock",
                                        .program = "test",
                                        .deadline = steady_clock::now() + seconds(10)});
  ASSERT_TRUE(handles.ok()) << handles.error().message;
  wire::WatchRequest watch;
  watch.session_id = (*handles)->welcome().session_id;
  FramedRequest framed;
  watch.Append(framed.bytes);
  auto stream = Channel::Open(channel_, wire::WatchMethod::kPath, std::move(framed), -1);
  ASSERT_TRUE(stream.ok());
  auto ready = (*stream)->Next(steady_clock::now() + seconds(10), nullptr);
  ASSERT_TRUE(ready.ok() && ready->has_value());
  std::thread caller([&] {
    for (int n = 0; n < 200; ++n) EXPECT_TRUE(GetNode(*channel_).status.ok());
  });
  for (std::uint64_t n = 0; n < 100; ++n) {
    v1::Event event;
    event.set_type(v1::Event::TYPE_GRANTED);
    event.set_lease_id(n + 1);
    daemon_.Send(event);
  }
  for (std::uint64_t n = 0; n < 100; ++n) {
    auto message = (*stream)->Next(steady_clock::now() + seconds(10), nullptr);
    ASSERT_TRUE(message.ok() && message->has_value()) << n;
    auto event = wire::Decode<wire::Event>(**message);
    ASSERT_TRUE(event.ok());
    EXPECT_EQ(event->lease_id, n + 1);
  }
  caller.join();
  auto none = (*stream)->Next(steady_clock::now(), nullptr);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
}

TEST_F(TransportTest, KnowsThatItIsOverAfterGoaway) {
  ASSERT_TRUE(GetNode(*channel_).status.ok());
  daemon_.RenewCalls();
  Reply reply = GetNode(*channel_);
  EXPECT_TRUE(reply.lost);
  EXPECT_FALSE(channel_->usable());
  Reply next = GetNode(*channel_);
  EXPECT_TRUE(next.lost && next.unprocessed);
}

TEST(GrpcStatusTest, DecodesPercentAndBase64) {
  EXPECT_EQ(PercentDecoded("a%20b%C3%A9%zz%4"), "a b\xc3\xa9%zz%4");
  EXPECT_EQ(Base64Decoded("aGk="), "hi");
  EXPECT_EQ(Base64Decoded("aGk"), "hi");
  EXPECT_EQ(Base64Decoded("aGkh"), "hi!");
  EXPECT_EQ(Base64Decoded("a"), std::nullopt);
  EXPECT_EQ(Base64Decoded("a*bc"), std::nullopt);
}

TEST(GrpcStatusTest, KeepsCodeAndSentenceWhenTheDetailsAreDamaged) {
  const Error error = GrpcError(8, "no room", "!!!");
  EXPECT_EQ(error.code, Code::kResourceExhausted);
  EXPECT_EQ(error.message, "no room");
  EXPECT_EQ(GrpcError(99, "", "").code, Code::kUnknown);
}

}  // namespace
}  // namespace gpulease
