// SPDX-License-Identifier: Apache-2.0
//
// Error and Result: how both sides say that something did not work.
//
// An Error has a code (gRPC's, by number), a sentence that says what was asked, what stands against
// it and what helps, and details for programs. Expected outcomes are codes that the direct caller
// handles; everything else is kInternal and is forwarded with context.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"

namespace gpulease {

// The numbers are gRPC's status codes.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "RESOURCE_EXHAUSTED", as gRPC prints it.
std::string_view CodeName(Code code);

// Why, for programs. The numbers are those of gpulease.v1.Reason; a test holds them against it.
enum class Reason : int {
  kUnspecified = 0,
  kBadField = 1,  // a field of the request is outside its range: mend the request
  kTooLarge =
      2,  // more than the GPU, the node or the tenant's limit could ever give: no retry helps
  kTenantLimit = 3,      // the tenant's limit is reached: retry after the tenant releases something
  kMemoryShort = 4,      // others hold the memory: retry after any release, or wait in the queue
  kDescriptorLimit = 5,  // the daemon's or the client's descriptor limit is reached
  kSessionLimit = 6,     // too many sessions, leases or waits of this user
  kNoSuchGpu = 7,        // the UUID names no GPU of this node
  kGpuUnavailable = 8,   // the GPU is lost, unresponsive or drained
  kNameTaken = 9,        // the owner has a lease of this name already
  kNotOpenable = 10,     // there is no such lease, or none that the caller may open so
  kSessionEnded = 11,    // the session is over or not the caller's: connect anew
  kStopping = 12,        // the daemon is about to stop: retry when it is back
  kWaitOver = 13,        // the memory did not become free within `wait`
  kHandOver = 14,        // the descriptors did not reach the client: the lease was undone
  kDriver = 15,          // the driver refused; the message names the call and its error
  kUnsupported = 16,     // this machine cannot do it; the message names what is missing
  kHostMemoryShort =
      17,  // the machine has not enough memory, huge pages or locked-memory limit for it
  kDriverMemoryShort =
      18,  // the ledger had room, the driver had none: somebody took memory past the broker
  kDeviceLost = 19,    // the GPU was lost, and the lease with it: lease memory elsewhere
  kNotSealed = 20,     // its contents are not complete: await them, or begin again where it is over
  kSealed = 21,        // its contents are complete: it opens for reading alone
  kSuspended = 50,     // its memory is given back for now: retry once its owner has resumed it
  kNotPartaking = 51,  // processes that have it open do not take part in suspending it
  kPeerGone = 40,      // a process that was waited for has died, has left or gave up
};

// A lease that stands in the way.
struct Blocker {
  std::uint64_t lease_id = 0;
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  Bytes size_bytes = 0;
};

struct Error {
  Code code = Code::kInternal;
  Reason reason = Reason::kUnspecified;
  std::string message;
  Bytes requested_bytes =
      0;  // of the pool or limit that refused; 0 when the error is not about bytes
  Bytes available_bytes = 0;
  Bytes limit_bytes = 0;
  std::vector<Blocker> blockers;  // the largest first, at most 8
};

inline Error MakeError(Code code, Reason reason, std::string message) {
  Error error;
  error.code = code;
  error.reason = reason;
  error.message = std::move(message);
  return error;
}

// `error` with "context: " before its message.
Error WithContext(std::string_view context, Error error);

// "operation path: Too many open files": the one place where errno becomes an Error. EMFILE and
// ENFILE are kResourceExhausted/kDescriptorLimit, ENOMEM and ENOSPC
// kResourceExhausted/kHostMemoryShort, EACCES and EPERM kPermissionDenied, ENOENT kNotFound,
// everything else kInternal.
Error ErrnoError(std::string_view operation, int error_number);

// A value or an Error. The caller looks at ok() before the value.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: meant to convert
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: meant to convert

  bool ok() const { return state_.index() == 0; }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  Error& error() & { return std::get<1>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

// Success or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: meant to convert

  bool ok() const { return !error_.has_value(); }
  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

// `if (Status status = F(); !status.ok()) return std::move(status).error();`, in one line.
#define GPULEASE_RETURN_IF_ERROR(expression)                        \
  if (auto gpulease_status = (expression); !gpulease_status.ok()) { \
    return std::move(gpulease_status).error();                      \
  }                                                                 \
  static_assert(true)

}  // namespace gpulease
