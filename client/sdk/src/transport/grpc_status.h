// SPDX-License-Identifier: Apache-2.0
//
// gRPC's trailing status as an Error: the one place where `grpc-status`, `grpc-message` and
// `grpc-status-details-bin` are read.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulease {

// The text behind percent-encoding; what is no valid escape stays as it is.
std::string PercentDecoded(std::string_view text);

// The bytes behind base64, with or without padding; nothing when it is none.
std::optional<std::string> Base64Decoded(std::string_view text);

// The Error of a status that is not OK. `details` is the header's text, empty when there was none;
// details that cannot be read are left out, as code and sentence stand without them.
Error GrpcError(int code, std::string_view message, std::string_view details);

}  // namespace gpulease
