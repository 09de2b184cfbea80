// SPDX-License-Identifier: Apache-2.0
//
// gpulease for C++: lease GPU memory and pinned host memory from the node's daemon, map it, share
// it by name.
//
//   gpulease::Client client;
//   gpulease::Lease weights = client.Allocate({.size_bytes = 4ull << 30, .name = "weights", .mode =
//   0640}); gpulease::Mapping mapped = weights.Map();          // device memory: a CUdeviceptr;
//   host memory: a pointer cuMemcpyHtoD(mapped.device_pointer(), source, mapped.size_bytes());
//
// and in another process
//
//   gpulease::Lease weights = gpulease::Client().Open("alice/weights",
//   gpulease::Access::kReadOnly);
//
// Objects are owners: a Mapping unmaps, a Lease lets go (the owner's releases), a Client ends its
// session, each when destroyed; a Mapping keeps its Lease's memory, a Lease its Client's
// connection, so that any order of destruction is right. When the process dies, all of it comes
// back by itself.
//
// Errors are thrown as gpulease::Exception. Destructors never throw. Nothing here creates a thread.
// Every class may be used from several threads at once.
//
// Fork: what a child inherits is inert. Its calls throw Exception with ErrorReason::kSessionEnded
// ("created before fork"), its destructors and its exit change nothing for the parent; a Client
// made in the child is the child's own.
//
// Mapping memory orders nothing between processes: finish the work on a stream
// (cuStreamSynchronize, or an interprocess event) before you tell another process that the data is
// there.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#define GPULEASE_API __attribute__((visibility("default")))

namespace gpulease {

inline namespace v1 {

// gRPC's codes, by number.
enum class ErrorCode : int {
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
  kUnauthenticated = 16
};

// Why; gpulease.v1.Reason, by number.
enum class ErrorReason : int {
  kUnspecified = 0,
  kBadField = 1,
  kTooLarge = 2,
  kTenantLimit = 3,
  kMemoryShort = 4,
  kDescriptorLimit = 5,
  kSessionLimit = 6,
  kNoSuchGpu = 7,
  kGpuUnavailable = 8,
  kNameTaken = 9,
  kNotOpenable = 10,
  kSessionEnded = 11,
  kStopping = 12,
  kWaitOver = 13,
  kHandOver = 14,
  kDriver = 15,
  kUnsupported = 16,
  kHostMemoryShort = 17,
  kDriverMemoryShort = 18
};

// What went wrong: what() is a sentence that says what was asked, what stands against it and what
// helps.
class GPULEASE_API Exception : public std::runtime_error {
 public:
  Exception(ErrorCode code, ErrorReason reason, const std::string& message,
            std::uint64_t requested_bytes = 0, std::uint64_t available_bytes = 0);
  ~Exception() override;
  ErrorCode code() const { return code_; }
  ErrorReason reason() const { return reason_; }
  std::uint64_t requested_bytes() const { return requested_bytes_; }  // 0: not about bytes
  std::uint64_t available_bytes() const { return available_bytes_; }

 private:
  ErrorCode code_;
  ErrorReason reason_;
  std::uint64_t requested_bytes_;
  std::uint64_t available_bytes_;
};

}  // namespace v1
}  // namespace gpulease
