// SPDX-License-Identifier: Apache-2.0
//
// The SDK's codec: what a daemon that lies sends as a message. The codec and Protocol Buffers C++
// make the same of what both take.
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/util/message_differencer.h>

#include <memory>

#include "base/check.h"
#include "client/sdk/codec/codec.h"
#include "client/sdk/src/transport/grpc_status.h"
#include "gpulease/v1/error.pb.h"
#include "gpulease/v1/error.wire.h"
#include "gpulease/v1/lease.pb.h"
#include "gpulease/v1/lease.wire.h"
#include "gpulease/v1/node.pb.h"
#include "gpulease/v1/node.wire.h"
#include "tests/fuzz/input.h"

namespace gpulease::fuzz {
namespace {

template <typename Protobuf, typename Wire>
void Compare(std::string_view bytes) {
  // A buffer of exactly this size, so that a sanitizer sees a byte read past it.
  const std::unique_ptr<char[]> exact(new char[bytes.size()]);
  bytes.copy(exact.get(), bytes.size());
  const Result<Wire> read = wire::Decode<Wire>({exact.get(), bytes.size()});
  if (!read.ok()) return;
  const std::string written = wire::Encode(*read);
  Protobuf back;
  GPULEASE_CHECK(back.ParseFromString(written), "what the codec writes is a message");
  const Result<Wire> again = wire::Decode<Wire>(written);
  GPULEASE_CHECK(again.ok() && *again == *read, "the codec reads what it writes");
  Protobuf expected;
  // The codec may take more: tags longer than 32 bits, say.
  if (!expected.ParseFromArray(exact.get(), static_cast<int>(bytes.size()))) return;
  expected.DiscardUnknownFields();
  GPULEASE_CHECK(google::protobuf::util::MessageDifferencer::Equals(expected, back),
                 expected.ShortDebugString() + " but " + back.ShortDebugString());
}

}  // namespace
}  // namespace gpulease::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulease;
  static const google::protobuf::LogSilencer silent;
  fuzz::Input input(data, size);
  const std::uint8_t which = input.Byte();
  switch (which % 12) {
    case 0:
      fuzz::Compare<v1::AllocateResponse, wire::AllocateResponse>(input.Rest());
      break;
    case 1:
      fuzz::Compare<v1::OpenResponse, wire::OpenResponse>(input.Rest());
      break;
    case 2:
      fuzz::Compare<v1::ReleaseResponse, wire::ReleaseResponse>(input.Rest());
      break;
    case 3:
      fuzz::Compare<v1::GetLeaseResponse, wire::GetLeaseResponse>(input.Rest());
      break;
    case 4:
      fuzz::Compare<v1::ListLeasesResponse, wire::ListLeasesResponse>(input.Rest());
      break;
    case 5:
      fuzz::Compare<v1::Event, wire::Event>(input.Rest());
      break;
    case 6:
      fuzz::Compare<v1::GetNodeResponse, wire::GetNodeResponse>(input.Rest());
      break;
    case 7:
      fuzz::Compare<v1::ListSessionsResponse, wire::ListSessionsResponse>(input.Rest());
      break;
    case 8:
      fuzz::Compare<v1::ErrorStatus, wire::ErrorStatus>(input.Rest());
      break;
    case 9:
      fuzz::Compare<v1::ErrorDetail, wire::ErrorDetail>(input.Rest());
      break;
    case 10:
      fuzz::Compare<v1::AllocateRequest, wire::AllocateRequest>(input.Rest());
      break;
    default: {
      // A status, as it stands in the trailers.
      const auto code = static_cast<std::int8_t>(input.Byte());
      const std::string_view message = input.Part();
      const Error error = GrpcError(code, message, input.Rest());
      GPULEASE_CHECK(!error.message.empty(), "an error has a sentence");
    }
  }
  return 0;
}
