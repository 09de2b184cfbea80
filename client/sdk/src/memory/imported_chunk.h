// SPDX-License-Identifier: Apache-2.0
//
// ImportedChunk: a chunk of GPU memory whose descriptor the driver has read, and that is not mapped
// yet. The driver takes about as long for it (23 µs on an H200) as the daemon's answer takes after
// the descriptors; so it is done between.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "client/sdk/src/memory/cuda_process.h"

namespace gpulease {

// Owns the driver's handle, or nothing. In a forked child it is the parent's, and left alone.
class ImportedChunk {
 public:
  ImportedChunk() = default;
  ImportedChunk(ImportedChunk&& other) noexcept
      : process_(std::move(other.process_)),
        handle_(std::exchange(other.handle_, 0)),
        generation_(other.generation_) {}
  ImportedChunk& operator=(ImportedChunk&& other) noexcept;
  ~ImportedChunk() { Drop(); }

  // Empty when this process has not loaded the driver so far, or the driver refuses: mapping tries
  // again, and says why.
  static ImportedChunk TryImport(const driver::DriverChoice& choice, int descriptor);

  explicit operator bool() const { return handle_ != 0; }
  // Gives the handle to the caller, who releases it.
  cuda::CUmemGenericAllocationHandle Release() { return std::exchange(handle_, 0); }

 private:
  void Drop();

  std::shared_ptr<const CudaProcess> process_;
  cuda::CUmemGenericAllocationHandle handle_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace gpulease
