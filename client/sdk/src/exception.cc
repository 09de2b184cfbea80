// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/exception.h"

namespace gpulease {

inline namespace abi_v1 {

Exception::Exception(ErrorCode code, ErrorReason reason, const std::string& message,
                     std::uint64_t requested_bytes, std::uint64_t available_bytes,
                     std::vector<BlockingLease> blockers)
    : std::runtime_error(message),
      code_(code),
      reason_(reason),
      requested_bytes_(requested_bytes),
      available_bytes_(available_bytes),
      blockers_(std::make_shared<const std::vector<BlockingLease>>(std::move(blockers))) {}

Exception::Exception(const Exception&) noexcept = default;
Exception::~Exception() = default;

}  // namespace abi_v1

void Throw(const Error& error) {
  std::vector<BlockingLease> blockers;
  for (const Blocker& blocker : error.blockers) {
    blockers.push_back({.lease_id = blocker.lease_id,
                        .pid = blocker.pid,
                        .uid = blocker.uid,
                        .size_bytes = blocker.size_bytes});
  }
  throw Exception(static_cast<ErrorCode>(error.code), static_cast<ErrorReason>(error.reason),
                  error.message, error.requested_bytes, error.available_bytes, std::move(blockers));
}

}  // namespace gpulease
