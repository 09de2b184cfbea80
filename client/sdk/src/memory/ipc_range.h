// SPDX-License-Identifier: Apache-2.0
//
// IpcRange: GPU memory of another process, opened by its 64-byte CUDA IPC handle. It is mapped
// where the driver chooses, for writing always, in the GPU's primary context, which it keeps.
//
// A handle is opened once for the process, however many ranges of it there are: not every driver
// opens it a second time.
#pragma once

#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "client/sdk/src/memory/cuda_process.h"

namespace gpulease {

class IpcRange {
 public:
  struct Options {
    std::string subject;  // for messages: "lease 17 on GPU-3f2a"
    int ordinal = -1;     // of the GPU
    std::string handle;   // 64 bytes
    Bytes offset = 0;     // in what it opens
  };

  // Errors: those of CudaDriver::MakeError; kInternal when it is no handle.
  static Result<IpcRange> Open(std::shared_ptr<const CudaProcess> process, const Options& options);

  cuda::CUdeviceptr address() const;
  // Gives the range up without closing it: in a forked child it is the parent's.
  void Disown();

 private:
  struct Opened;
  struct Table;
  static Table& TheTable();
  IpcRange(std::shared_ptr<Opened> opened, Bytes offset)
      : opened_(std::move(opened)), offset_(offset) {}

  std::shared_ptr<Opened> opened_;
  Bytes offset_ = 0;
};

}  // namespace gpulease
