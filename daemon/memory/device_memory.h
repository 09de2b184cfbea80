// SPDX-License-Identifier: Apache-2.0
//
// DeviceMemory: makes chunks of one GPU's memory. A chunk is a POSIX descriptor that alone keeps
// the memory and its contents alive; the driver's handle is released at once. It creates no CUDA
// context and maps nothing.
#pragma once

#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/cuda_driver.h"

namespace gpulease::memory {

// Threads: any; the caller serialises the calls to one GPU.
class DeviceMemory {
 public:
  // `name` is for messages: the GPU's UUID.
  DeviceMemory(std::shared_ptr<const driver::CudaDriver> cuda, int ordinal, std::string name)
      : cuda_(std::move(cuda)), ordinal_(ordinal), name_(std::move(name)) {}

  // Memory that reads as zeros. `bytes` is a multiple of the granularity.
  //
  // Errors: those of CudaDriver::MakeError, with the name of the step; everything done before it is
  // undone.
  Result<UniqueFd> CreateChunk(Bytes bytes) const;

 private:
  std::shared_ptr<const driver::CudaDriver> cuda_;
  int ordinal_;
  std::string name_;
};

}  // namespace gpulease::memory
