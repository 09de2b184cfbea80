// SPDX-License-Identifier: Apache-2.0
//
// GpuKernels: the test's kernels on one GPU of this process, in its primary context. A driver call
// that fails ends the process with its name, except for those that a test expects to fail.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "driver/cuda_driver.h"

namespace gpulease::gpu_test {

class GpuKernels {
 public:
  explicit GpuKernels(int ordinal);
  ~GpuKernels();

  void Fill(std::uint64_t words, std::uint64_t count, std::uint32_t seed);
  // Fills once what was launched before is done, and returns at once.
  void FillLater(std::uint64_t words, std::uint64_t count, std::uint32_t seed);
  // Words that are not the pattern's; without `seed`, that are not zero.
  std::uint64_t Wrong(std::uint64_t words, std::uint64_t count, std::uint32_t seed);
  std::uint64_t NotZero(std::uint64_t words, std::uint64_t count);
  // Launches a kernel that writes for so long, and returns at once.
  void Scribble(std::uint64_t words, std::uint64_t count, std::uint32_t value,
                std::uint64_t nanoseconds);
  // Fills, and says by which name the driver reported it.
  std::string TryFill(std::uint64_t words, std::uint64_t count, std::uint32_t seed);

 private:
  cuda::CUresult Launch(const char* kernel, void** parameters);
  std::uint64_t Counted(const char* kernel, void** parameters, std::uint64_t* counter_parameter);
  void Check(const char* call, cuda::CUresult result) const;

  std::shared_ptr<const driver::CudaDriver> cuda_;
  cuda::CUdevice device_ = 0;
  cuda::CUcontext context_ = nullptr;
  cuda::CUmodule module_ = nullptr;
};

}  // namespace gpulease::gpu_test
