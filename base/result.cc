// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <array>
#include <cerrno>
#include <cstring>

namespace gpulease {

std::string_view CodeName(Code code) {
  static constexpr std::array<std::string_view, 17> kNames = {"OK",
                                                              "CANCELLED",
                                                              "UNKNOWN",
                                                              "INVALID_ARGUMENT",
                                                              "DEADLINE_EXCEEDED",
                                                              "NOT_FOUND",
                                                              "ALREADY_EXISTS",
                                                              "PERMISSION_DENIED",
                                                              "RESOURCE_EXHAUSTED",
                                                              "FAILED_PRECONDITION",
                                                              "ABORTED",
                                                              "OUT_OF_RANGE",
                                                              "UNIMPLEMENTED",
                                                              "INTERNAL",
                                                              "UNAVAILABLE",
                                                              "DATA_LOSS",
                                                              "UNAUTHENTICATED"};
  const auto index = static_cast<std::size_t>(code);
  return index < kNames.size() ? kNames[index] : "UNKNOWN";
}

Error WithContext(std::string_view context, Error error) {
  error.message = std::string(context) + ": " + error.message;
  return error;
}

Error ErrnoError(std::string_view operation, int error_number) {
  Error error;
  error.message = std::string(operation) + ": " + std::strerror(error_number);
  switch (error_number) {
    case EMFILE:
    case ENFILE:
      error.code = Code::kResourceExhausted;
      error.reason = Reason::kDescriptorLimit;
      break;
    case ENOMEM:
    case ENOSPC:
      error.code = Code::kResourceExhausted;
      error.reason = Reason::kHostMemoryShort;
      break;
    case EACCES:
    case EPERM:
      error.code = Code::kPermissionDenied;
      break;
    case ENOENT:
      error.code = Code::kNotFound;
      break;
    default:
      break;
  }
  return error;
}

}  // namespace gpulease
