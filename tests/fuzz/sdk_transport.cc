// SPDX-License-Identifier: Apache-2.0
//
// The SDK's HTTP/2: what a daemon that lies answers to calls and streams.
#include <array>
#include <memory>
#include <string>

#include "base/check.h"
#include "client/sdk/src/transport/http2_session.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulease;
  fuzz::Input input(data, size);
  std::array<std::unique_ptr<Exchange>, 4> exchanges;
  Http2Session session;
  std::string out;
  bool alive = true;
  session.Collect(out);
  while (!input.empty() && alive) {
    std::unique_ptr<Exchange>& exchange = exchanges[input.Below(exchanges.size())];
    switch (input.Below(8)) {
      case 0:
        if (exchange) session.Abandon(*exchange);
        exchange = std::make_unique<Exchange>();
        exchange->request = std::string(5, '\0');
        exchange->stream = input.Flag();
        if (!session.accepts_calls() ||
            !session.Start(*exchange, "/gpulease.v1.NodeService/GetNode",
                           std::chrono::nanoseconds(input.Number<std::uint32_t>()))) {
          exchange.reset();
        }
        break;
      case 1:
        if (exchange) session.Abandon(*exchange);
        session.Collect(out);
        exchange.reset();
        break;
      case 2: {
        // A frame that is one, by its first bytes.
        const std::string_view payload = input.Part();
        std::string frame(3, '\0');
        frame[2] = static_cast<char>(payload.size());
        frame += static_cast<char>(input.Below(10));
        frame += static_cast<char>(input.Byte());
        frame += std::string(3, '\0');
        frame += static_cast<char>(input.Below(10));
        frame += payload;
        alive = session.Receive(frame.data(), frame.size());
        break;
      }
      default: {
        const std::string_view bytes = input.Part();
        alive = session.Receive(bytes.data(), bytes.size());
      }
    }
    out.clear();
    session.Collect(out);
    alive = alive && !session.over();
  }
  session.FinishAll("the end");
  for (const std::unique_ptr<Exchange>& exchange : exchanges) {
    if (!exchange) continue;
    GPULEASE_CHECK(exchange->finished, "every call is answered");
    const Status outcome = exchange->Outcome();
    GPULEASE_CHECK(outcome.ok() || !outcome.error().message.empty(), "an error has a sentence");
    GPULEASE_CHECK(exchange->messages.size() <= Http2Session::kMaxStreamMessages, "bounded");
  }
  return 0;
}
