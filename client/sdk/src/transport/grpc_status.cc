// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/transport/grpc_status.h"

#include <cstdint>

#include "client/sdk/codec/codec.h"
#include "gpulease/v1/error.wire.h"

namespace gpulease {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

int Base64Digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

}  // namespace

std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
        HexDigit(text[i + 2]) >= 0) {
      decoded += static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

std::optional<std::string> Base64Decoded(std::string_view text) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string decoded;
  decoded.reserve(text.size() * 3 / 4);
  std::uint32_t bits = 0;
  int held = 0;
  for (char c : text) {
    const int digit = Base64Digit(c);
    if (digit < 0) return std::nullopt;
    bits = (bits << 6 | static_cast<std::uint32_t>(digit)) & 0xffffff;
    held += 6;
    if (held >= 8) {
      held -= 8;
      decoded += static_cast<char>(bits >> held & 0xff);
    }
  }
  return decoded;
}

Error GrpcError(int code, std::string_view message, std::string_view details) {
  const bool known = code > 0 && code <= static_cast<int>(Code::kUnauthenticated);
  Error error = MakeError(known ? static_cast<Code>(code) : Code::kUnknown, Reason::kUnspecified,
                          PercentDecoded(message));
  if (error.message.empty()) {
    error.message = "the daemon answered " + std::string(CodeName(error.code));
  }
  std::optional<std::string> bytes = Base64Decoded(details);
  if (!bytes || bytes->empty()) return error;
  auto status = wire::Decode<wire::ErrorStatus>(*bytes);
  if (!status.ok()) return error;
  for (const wire::Any& any : status->details) {
    if (!any.type_url.ends_with("/gpulease.v1.ErrorDetail")) continue;
    auto detail = wire::Decode<wire::ErrorDetail>(any.value);
    if (!detail.ok()) continue;
    error.reason = static_cast<Reason>(detail->reason);
    error.requested_bytes = detail->requested_bytes;
    error.available_bytes = detail->available_bytes;
    error.limit_bytes = detail->limit_bytes;
    for (const wire::Blocker& blocker : detail->blockers) {
      error.blockers.push_back({.lease_id = blocker.lease_id,
                                .pid = blocker.pid,
                                .uid = blocker.uid,
                                .size_bytes = blocker.size_bytes});
    }
  }
  return error;
}

}  // namespace gpulease
