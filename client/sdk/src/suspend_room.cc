// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/suspend_room.h"

#include <algorithm>
#include <utility>

#include "client/sdk/src/leasing.h"

namespace gpulease {
namespace {

// Between two calls of CopyProgress: 5 ms at the bandwidth of PCIe 5.
constexpr Bytes kSlice = 256 * kMiB;

}  // namespace

// A context of one GPU: the thread's current one, or the primary one, retained for as long.
class GpuContext {
 public:
  static Result<std::unique_ptr<GpuContext>> Of(std::shared_ptr<const CudaProcess> process,
                                                int ordinal, const std::string& subject) {
    const driver::CudaDriver& cuda = process->cuda();
    std::unique_ptr<GpuContext> made(new GpuContext);
    made->process_ = std::move(process);
    cuda::CUdevice device = -1;
    if (cuda.cuCtxGetCurrent(&made->context_) == cuda::CUDA_SUCCESS && made->context_ != nullptr &&
        cuda.cuCtxGetDevice(&device) == cuda::CUDA_SUCCESS && device == ordinal)
      return made;
    const auto result = cuda.cuDevicePrimaryCtxRetain(&made->context_, ordinal);
    if (result != cuda::CUDA_SUCCESS) {
      return cuda.MakeError(
          "cuDevicePrimaryCtxRetain of GPU " + std::to_string(ordinal) + " for " + subject, result);
    }
    made->retained_ = ordinal;
    return made;
  }
  ~GpuContext() {
    if (retained_ >= 0) process_->cuda().cuDevicePrimaryCtxRelease(retained_);
  }
  GpuContext(const GpuContext&) = delete;
  GpuContext& operator=(const GpuContext&) = delete;

  Status Push(const std::string& subject) {
    const auto result = process_->cuda().cuCtxPushCurrent(context_);
    if (result == cuda::CUDA_SUCCESS) return {};
    return process_->cuda().MakeError("cuCtxPushCurrent for " + subject, result);
  }
  void Pop() {
    cuda::CUcontext popped = nullptr;
    process_->cuda().cuCtxPopCurrent(&popped);
  }

 private:
  GpuContext() = default;
  std::shared_ptr<const CudaProcess> process_;
  cuda::CUcontext context_ = nullptr;
  int retained_ = -1;
};

namespace {

// The thread's current context, for as long.
class Entered {
 public:
  explicit Entered(GpuContext& context) : context_(context) {}
  ~Entered() { context_.Pop(); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  GpuContext& context_;
};

// A stream, idle and gone at the end, whatever happens.
class CopyStream {
 public:
  explicit CopyStream(const driver::CudaDriver& cuda) : cuda_(cuda) {}
  ~CopyStream() {
    if (stream == nullptr) return;
    cuda_.cuStreamSynchronize(stream);
    cuda_.cuStreamDestroy(stream);
  }
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  cuda::CUstream stream = nullptr;

 private:
  const driver::CudaDriver& cuda_;
};

}  // namespace

Result<std::unique_ptr<SuspendRoom>> SuspendRoom::Make(const std::shared_ptr<Session>& session,
                                                       const wire::Lease& lease, Bytes size,
                                                       std::chrono::milliseconds wait) {
  const std::string subject =
      "the pinned memory to suspend lease " + std::to_string(lease.lease_id);
  if (!session->options().use_cuda) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     subject + " needs CUDA, and this Client was made with use_cuda = false");
  }
  auto process = CudaProcess::Get(DriverOf(session->link().handles->welcome()));
  if (!process.ok()) return WithContext(subject, std::move(process).error());
  const Result<int> ordinal = (*process)->VisibleOrdinal(lease.gpu_uuid);
  if (!ordinal.ok()) return WithContext(subject, ordinal.error());
  std::unique_ptr<SuspendRoom> room(new SuspendRoom);
  room->process_ = *process;
  room->ordinal_ = *ordinal;
  const AllocateOptions options{.size_bytes = size,
                                .kind = MemoryKind::kHost,
                                .gpu_uuid = lease.gpu_uuid,
                                .labels = {{kLabel, std::to_string(lease.lease_id)}}};
  auto records = AllocateRecords(session, {&options, 1}, wait);
  if (!records.ok()) return WithContext(subject, std::move(records).error());
  auto context = GpuContext::Of(*process, *ordinal, subject);
  if (!context.ok()) return std::move(context).error();
  room->context_ = std::move(*context);
  GPULEASE_RETURN_IF_ERROR(room->context_->Push(subject));
  const Entered entered(*room->context_);
  const std::shared_ptr<LeaseRecord>& record = records->front();
  auto range = record->Map(record, {.register_with_cuda = true});
  if (!range.ok()) return WithContext(subject, std::move(range).error());
  room->range_ = std::move(*range);
  return room;
}

SuspendRoom::~SuspendRoom() {
  const bool inherited = range_ && range_->record->session()->inherited();
  range_.reset();
  // In a forked child the context is the parent's.
  if (inherited) static_cast<void>(context_.release());
}

Bytes SuspendRoom::size() const { return range_->record->size_bytes(); }

Status SuspendRoom::CopyIn(const DeviceContents& contents, const CopyProgress& progress) {
  return Copy(contents, progress, true);
}

Status SuspendRoom::CopyOut(const DeviceContents& contents, const CopyProgress& progress) {
  return Copy(contents, progress, false);
}

Status SuspendRoom::Copy(const DeviceContents& contents, const CopyProgress& progress, bool in) {
  const driver::CudaDriver& cuda = process_->cuda();
  auto context = GpuContext::Of(process_, ordinal_, contents.subject);
  if (!context.ok()) return std::move(context).error();
  GPULEASE_RETURN_IF_ERROR((*context)->Push(contents.subject));
  const Entered entered(**context);
  auto result = cuda.cuCtxSynchronize();
  if (result != cuda::CUDA_SUCCESS)
    return cuda.MakeError("cuCtxSynchronize before the copy of " + contents.subject, result);
  auto device = DeviceRange::Map(process_, {.subject = contents.subject,
                                            .chunks = contents.chunks,
                                            .alignment = contents.alignment,
                                            .read_only = in,
                                            .ordinals = {ordinal_}});
  if (!device.ok()) return std::move(device).error();
  CopyStream copy(cuda);
  result = cuda.cuStreamCreate(&copy.stream, cuda::kStreamNonBlocking);
  if (result != cuda::CUDA_SUCCESS) {
    copy.stream = nullptr;
    return cuda.MakeError("cuStreamCreate for the copy of " + contents.subject, result);
  }
  Bytes total = 0;
  for (const DeviceChunk& chunk : contents.chunks) total += chunk.size;
  std::byte* const host = range_->host->address();
  for (Bytes at = 0; at < total;) {
    const Bytes bytes = std::min(kSlice, total - at);
    result = in ? cuda.cuMemcpyDtoHAsync(host + at, device->address() + at, bytes, copy.stream)
                : cuda.cuMemcpyHtoDAsync(device->address() + at, host + at, bytes, copy.stream);
    const char* const call = in ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync";
    if (result != cuda::CUDA_SUCCESS)
      return cuda.MakeError(std::string(call) + " of " + contents.subject, result);
    result = cuda.cuStreamSynchronize(copy.stream);
    if (result != cuda::CUDA_SUCCESS)
      return cuda.MakeError("cuStreamSynchronize of the copy of " + contents.subject, result);
    at += bytes;
    if (progress) progress(at, total);
  }
  return {};
}

Status SynchronizeContext(const driver::DriverChoice& choice) {
  if (!CudaProcess::ThreadHasContext(choice)) return {};
  const std::shared_ptr<const CudaProcess> process = CudaProcess::IfLoaded(choice);
  if (!process) return {};
  const auto result = process->cuda().cuCtxSynchronize();
  if (result == cuda::CUDA_SUCCESS) return {};
  return process->cuda().MakeError("cuCtxSynchronize before a suspend", result);
}

}  // namespace gpulease
