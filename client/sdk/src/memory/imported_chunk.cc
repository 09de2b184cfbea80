// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/memory/imported_chunk.h"

#include "client/sdk/src/process/fork_guard.h"

namespace gpulease {

ImportedChunk& ImportedChunk::operator=(ImportedChunk&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  process_ = std::move(other.process_);
  handle_ = std::exchange(other.handle_, 0);
  generation_ = other.generation_;
  return *this;
}

ImportedChunk ImportedChunk::TryImport(const driver::DriverChoice& choice, int descriptor) {
  ImportedChunk imported;
  imported.process_ = CudaProcess::IfLoaded(choice);
  if (!imported.process_) return imported;
  imported.generation_ = ForkGeneration();
  if (imported.process_->cuda().cuMemImportFromShareableHandle(
          &imported.handle_, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
          cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != cuda::CUDA_SUCCESS) {
    imported.handle_ = 0;
  }
  return imported;
}

void ImportedChunk::Drop() {
  if (handle_ != 0 && generation_ == ForkGeneration()) process_->cuda().cuMemRelease(handle_);
  handle_ = 0;
}

}  // namespace gpulease
