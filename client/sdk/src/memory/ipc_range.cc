// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/memory/ipc_range.h"

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace gpulease {

using Key = std::pair<const CudaProcess*, std::string>;

struct IpcRange::Table {
  // Held while a handle is opened and closed, so that neither comes in between the other.
  std::mutex mutex;
  std::map<Key, std::weak_ptr<Opened>> opened;
};

// A handle as this process has it open.
struct IpcRange::Opened {
  explicit Opened(std::shared_ptr<const CudaProcess> by) : process(std::move(by)) {}
  ~Opened();
  Status Open(const Options& options);

  const std::shared_ptr<const CudaProcess> process;
  std::string handle;
  int ordinal = -1;
  cuda::CUcontext context = nullptr;  // retained
  cuda::CUdeviceptr base = 0;
};

// Never destroyed: mappings of static storage are unmapped late.
IpcRange::Table& IpcRange::TheTable() {
  static Table* const table = new Table;
  return *table;
}

Status IpcRange::Opened::Open(const Options& options) {
  const driver::CudaDriver& cuda = process->cuda();
  cuda::CUipcMemHandle given{};
  if (options.handle.size() != sizeof given.reserved) {
    return MakeError(Code::kInternal, Reason::kHandOver,
                     options.subject + " came without its 64-byte handle");
  }
  std::memcpy(given.reserved, options.handle.data(), sizeof given.reserved);
  ordinal = options.ordinal;
  auto result = cuda.cuDevicePrimaryCtxRetain(&context, ordinal);
  if (result != cuda::CUDA_SUCCESS) {
    context = nullptr;
    return cuda.MakeError("cuDevicePrimaryCtxRetain for " + options.subject, result);
  }
  result = cuda.cuCtxPushCurrent(context);
  if (result != cuda::CUDA_SUCCESS)
    return cuda.MakeError("cuCtxPushCurrent for " + options.subject, result);
  result = cuda.cuIpcOpenMemHandle(&base, given, cuda::kIpcMemLazyEnablePeerAccess);
  cuda::CUcontext popped = nullptr;
  cuda.cuCtxPopCurrent(&popped);
  if (result == cuda::CUDA_SUCCESS) return {};
  base = 0;
  return cuda.MakeError(
      "cuIpcOpenMemHandle of " + options.subject +
          (result == cuda::CUDA_ERROR_ALREADY_MAPPED ? " (the program has it open by itself)" : ""),
      result);
}

IpcRange::Opened::~Opened() {
  Table& table = TheTable();
  const driver::CudaDriver& cuda = process->cuda();
  const std::lock_guard lock(table.mutex);
  if (base != 0) {
    // What fails here is a faulted device, whose memory goes with the process.
    cuda::CUcontext popped = nullptr;
    cuda.cuCtxPushCurrent(context);
    cuda.cuIpcCloseMemHandle(base);
    cuda.cuCtxPopCurrent(&popped);
  }
  if (context != nullptr) cuda.cuDevicePrimaryCtxRelease(ordinal);
  const auto found = table.opened.find({process.get(), handle});
  if (found != table.opened.end() && found->second.expired()) table.opened.erase(found);
}

Result<IpcRange> IpcRange::Open(std::shared_ptr<const CudaProcess> process,
                                const Options& options) {
  Table& table = TheTable();
  // Goes after the lock, which its end takes.
  auto opened = std::make_shared<Opened>(std::move(process));
  const std::lock_guard lock(table.mutex);
  std::weak_ptr<Opened>& slot = table.opened[{opened->process.get(), options.handle}];
  if (std::shared_ptr<Opened> known = slot.lock())
    return IpcRange(std::move(known), options.offset);
  opened->handle = options.handle;
  GPULEASE_RETURN_IF_ERROR(opened->Open(options));
  slot = opened;
  return IpcRange(opened, options.offset);
}

cuda::CUdeviceptr IpcRange::address() const { return opened_->base + offset_; }

void IpcRange::Disown() {
  // Leaked, as its end would close it.
  new std::shared_ptr<Opened>(std::move(opened_));
}

}  // namespace gpulease
