// SPDX-License-Identifier: Apache-2.0
//
// ChunkMapping: chunks by their descriptors, mapped into one range: host memory by mmap, device
// memory by the driver. What it cannot do is a sentence.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "driver/cuda_driver.h"

namespace gpulease::e2e {

class ChunkMapping {
 public:
  // `cuda` null: host memory.
  static Result<std::unique_ptr<ChunkMapping>> Map(std::shared_ptr<const driver::CudaDriver> cuda,
                                                   const std::vector<int>& descriptors,
                                                   const std::vector<Bytes>& sizes, bool read_only);
  ~ChunkMapping();
  ChunkMapping(const ChunkMapping&) = delete;
  ChunkMapping& operator=(const ChunkMapping&) = delete;

  Status Fill(unsigned char byte);
  // Where the first byte is that is another one; the size when there is none.
  Result<Bytes> FirstOther(unsigned char byte) const;
  Bytes size() const { return size_; }

 private:
  ChunkMapping() = default;
  Status MapDevice(const std::vector<int>& descriptors, const std::vector<Bytes>& sizes,
                   bool read_only);
  Status MapHost(const std::vector<int>& descriptors, const std::vector<Bytes>& sizes,
                 bool read_only);
  Status WithContext() const;

  std::shared_ptr<const driver::CudaDriver> cuda_;
  std::uint64_t address_ = 0;
  Bytes size_ = 0;
};

}  // namespace gpulease::e2e
