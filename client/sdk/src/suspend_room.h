// SPDX-License-Identifier: Apache-2.0
//
// SuspendRoom: the pinned host memory that a suspended lease's contents are in: a host lease of the
// same session, mapped and registered with CUDA. It goes back when it is destroyed.
//
// Copies run in the thread's current context where that is one of the lease's GPU, else in the
// GPU's primary one, on a stream of their own, through a mapping of their own: whether and how the
// lease is mapped otherwise does not matter.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "client/sdk/src/lease_record.h"

namespace gpulease {

class GpuContext;

// The memory that is copied from or to.
struct DeviceContents {
  std::string subject;  // for messages: "lease 17 on GPU-3f2a"
  std::span<const DeviceChunk> chunks;
  Bytes alignment = 0;
};

class SuspendRoom {
 public:
  static constexpr const char* kLabel = "gpulease.suspend";

  // For contents of `size` bytes of `lease`, near to its GPU. Errors: those of Client::Allocate and
  // Lease::Map.
  static Result<std::unique_ptr<SuspendRoom>> Make(const std::shared_ptr<Session>& session,
                                                   const wire::Lease& lease, Bytes size,
                                                   std::chrono::milliseconds wait);
  ~SuspendRoom();

  Bytes size() const;
  // Errors: those of CudaDriver::MakeError. Throws what `progress` throws.
  Status CopyIn(const DeviceContents& contents, const CopyProgress& progress);
  Status CopyOut(const DeviceContents& contents, const CopyProgress& progress);

 private:
  SuspendRoom() = default;
  Status Copy(const DeviceContents& contents, const CopyProgress& progress, bool in);

  std::shared_ptr<const CudaProcess> process_;
  int ordinal_ = 0;
  std::unique_ptr<GpuContext> context_;  // in which it is registered; after range_ it goes
  std::shared_ptr<MappedRange> range_;
};

// Waits for the GPU work of the thread's current context, if it has one.
Status SynchronizeContext(const driver::DriverChoice& choice);

}  // namespace gpulease
