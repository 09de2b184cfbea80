// SPDX-License-Identifier: Apache-2.0
//
// Gpu: one GPU as this process drives it: the driver's functions, the GPU's primary context and a
// stream. Copies and plain allocations need those; leasing and mapping do not.
#pragma once

#include <memory>
#include <string>

#include "base/bytes.h"
#include "driver/cuda_driver.h"

namespace gpulease::playground {

// Its context is current in the thread that made it, from the start on.
class Gpu {
 public:
  // `simulated_directory` as of SimulatedDirectory(). Throws std::runtime_error.
  Gpu(const std::string& simulated_directory, const std::string& uuid);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  const driver::CudaDriver& cuda() const { return *cuda_; }
  const std::string& uuid() const { return uuid_; }
  int ordinal() const { return ordinal_; }
  cuda::CUstream stream() const { return stream_; }
  bool Reaches(const std::string& uuid) const;  // peer access; a GPU reaches itself
  void MakeCurrent() const;
  void Synchronize() const;  // what the stream was given is done
  // Throws std::runtime_error when a driver call was not successful.
  void Check(cuda::CUresult result, const char* what) const;

 private:
  int OrdinalOf(const std::string& uuid) const;

  std::shared_ptr<const driver::CudaDriver> cuda_;
  std::string uuid_;
  int ordinal_ = -1;
  cuda::CUcontext context_ = nullptr;
  cuda::CUstream stream_ = nullptr;
};

// Throws std::runtime_error.
std::shared_ptr<const driver::CudaDriver> LoadCuda(const std::string& simulated_directory);

}  // namespace gpulease::playground
