// SPDX-License-Identifier: Apache-2.0
//
// HostRange: chunks of host memory (memfds), mapped one after the other into one range of this
// process's addresses, and registered with CUDA where that is wanted.
//
// Forked children do not have the range (MADV_DONTFORK): they would keep the memory.
//
// Invariant: Map() gives the whole range or leaves nothing behind, and its error names the step.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "client/sdk/src/memory/cuda_process.h"

namespace gpulease {

struct HostChunk {
  int descriptor = -1;  // stays the caller's
  Bytes size = 0;
};

class HostRange {
 public:
  struct Options {
    std::string subject;  // for messages: "lease 17"
    std::span<const HostChunk> chunks;
    Bytes alignment = 0;  // at least a page; of huge pages at least 2 MiB
    bool read_only = false;
  };

  // Errors: those of ErrnoError.
  static Result<HostRange> Map(const Options& options);
  HostRange(HostRange&& other) noexcept;
  HostRange& operator=(HostRange&&) = delete;
  ~HostRange();

  // Registers it with CUDA: in the thread's current context, or in the primary one of `ordinal`,
  // which is retained for as long. The thread's current context is as before, in any case.
  //
  // Errors: kResourceExhausted/kHostMemoryShort with advice when memory cannot be locked;
  // kFailedPrecondition/kUnsupported when this GPU cannot register read-only memory; those of
  // CudaDriver::MakeError.
  Status Register(std::shared_ptr<const CudaProcess> process, int ordinal,
                  const std::string& subject);

  std::byte* address() const { return address_; }
  cuda::CUdeviceptr device_address() const { return device_address_; }
  void Disown();

 private:
  HostRange() = default;
  Status RegisterHere(const std::string& subject);

  std::byte* address_ = nullptr;
  Bytes size_ = 0;
  bool read_only_ = false;
  std::shared_ptr<const CudaProcess> process_;  // while registered
  cuda::CUcontext context_ = nullptr;           // in which it is
  int retained_ = -1;                           // whose primary context is retained
  cuda::CUdeviceptr device_address_ = 0;
};

}  // namespace gpulease
