// SPDX-License-Identifier: Apache-2.0
#include "daemon/ipc_host/host.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/descriptor_channel.h"
#include "base/packet.h"
#include "driver/gpu_probe.h"

namespace gpulease::ipc {

Host::Host(Options options, UniqueFd listening)
    : options_(std::move(options)), listening_(std::move(listening)) {}

Host::~Host() {
  for (const Block& block : blocks_) cuda_->cuMemFree(block.address);
  if (device_) cuda_->cuDevicePrimaryCtxRelease(*device_);
  // At the end, as whoever finds nobody here takes the GPU for closed. Who is in the queue sees
  // that this one ended, and starts another.
  unlink(options_.socket.c_str());
}

void Host::Run() {
  Time used = BootClock::now();
  while (true) {
    const bool idle = blocks_.empty() && connections_.empty();
    int timeout = -1;
    if (idle) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(After(used, options_.linger) -
                                                                     BootClock::now());
      if (failed_ || left.count() <= 0) break;
      timeout = static_cast<int>(left.count());
    }
    std::vector<pollfd> polled = {{listening_.get(), POLLIN, 0}};
    for (const UniqueFd& connection : connections_) polled.push_back({connection.get(), POLLIN, 0});
    for (const Block& block : blocks_) polled.push_back({block.pipe.get(), 0, 0});
    if (poll(polled.data(), polled.size(), timeout) < 0) continue;
    // From the end, so that the places before stay what they were.
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      if (polled[1 + connections_.size() + i].revents == 0) continue;
      cuda_->cuMemFree(blocks_[i].address);
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
      used = BootClock::now();
    }
    for (std::size_t i = connections_.size(); i-- > 0;) {
      if (polled[1 + i].revents == 0) continue;
      const UniqueFd connection = std::move(connections_[i]);
      connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
      // Who only looks whether it is there does not keep it there.
      if (Answer(connection.get())) used = BootClock::now();
    }
    if (polled[0].revents != 0) Accept();
  }
}

void Host::Accept() {
  UniqueFd connection(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection) {
    // At the limit of open files it would be asked again at once.
    poll(nullptr, 0, 10);
    return;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      (peer.uid != geteuid() && peer.uid != 0))
    return;
  connections_.push_back(std::move(connection));
}

bool Host::Answer(int connection) {
  std::byte buffer[sizeof(Request)];
  const Result<ReceivedMessage> received = ReceiveMessage(connection, buffer, /*dont_wait=*/true);
  if (!received.ok()) return false;
  const auto request = ReadPacket<Request>(std::span(buffer).first(received->size));
  if (!request || request->magic != kMagic || request->version != kVersion) return false;
  Reply reply;
  UniqueFd keeps;
  Status done = device_ ? Status() : Open();
  if (done.ok() && request->kind == Kind::kMake) {
    Result<UniqueFd> made = Make(request->bytes, reply);
    if (made.ok()) {
      keeps = std::move(*made);
    } else {
      done = std::move(made).error();
    }
  }
  failed_ = !done.ok();
  if (failed_) {
    reply.code = static_cast<std::int32_t>(done.error().code);
    reply.reason = static_cast<std::int32_t>(done.error().reason);
    CopyText(reply.message, done.error().message);
  }
  const int descriptor = keeps.get();
  // A block that nobody hears of hangs up here.
  static_cast<void>(
      SendMessage(connection, BytesOf(reply), std::span(&descriptor, keeps ? 1u : 0u)).ok());
  return true;
}

Status Host::Open() {
  Result<std::shared_ptr<const driver::CudaDriver>> cuda =
      driver::CudaDriver::Load(options_.driver);
  if (!cuda.ok()) return std::move(cuda).error();
  cuda_ = std::move(*cuda);
  const Result<std::vector<driver::GpuDescription>> gpus = driver::DescribeGpus(*cuda_, nullptr);
  if (!gpus.ok()) return gpus.error();
  const auto gpu = std::find_if(gpus->begin(), gpus->end(),
                                [&](const auto& one) { return one.uuid == options_.gpu; });
  if (gpu == gpus->end()) {
    return MakeError(Code::kUnavailable, Reason::kGpuUnavailable,
                     "the driver does not show " + options_.gpu + " to gpulease-ipc-host");
  }
  cuda::CUcontext context = nullptr;
  cuda::CUresult result = cuda_->cuDevicePrimaryCtxRetain(&context, gpu->ordinal);
  if (result != cuda::CUDA_SUCCESS)
    return cuda_->MakeError("cuDevicePrimaryCtxRetain on " + options_.gpu, result);
  result = cuda_->cuCtxSetCurrent(context);
  if (result != cuda::CUDA_SUCCESS) {
    cuda_->cuDevicePrimaryCtxRelease(gpu->ordinal);
    return cuda_->MakeError("cuCtxSetCurrent on " + options_.gpu, result);
  }
  device_ = gpu->ordinal;
  return {};
}

Result<UniqueFd> Host::Make(Bytes bytes, Reply& reply) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return ErrnoError("pipe", errno);
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  cuda::CUdeviceptr address = 0;
  const cuda::CUresult result = cuda_->cuMemAlloc(&address, bytes);
  if (result != cuda::CUDA_SUCCESS) {
    return cuda_->MakeError("cuMemAlloc of " + FormatBytes(bytes) + " on " + options_.gpu, result);
  }
  if (Status filled = Fill(address, bytes, reply); !filled.ok()) {
    cuda_->cuMemFree(address);
    return std::move(filled).error();
  }
  blocks_.push_back({address, std::move(reading)});
  return writing;
}

Status Host::Fill(cuda::CUdeviceptr address, Bytes bytes, Reply& reply) const {
  const auto failed = [&](const char* step, cuda::CUresult result) {
    return cuda_->MakeError(std::string(step) + " of " + FormatBytes(bytes) + " on " + options_.gpu,
                            result);
  };
  // What this process freed before may come again with its contents.
  cuda::CUresult result = cuda_->cuMemsetD8(address, 0, bytes);
  if (result == cuda::CUDA_SUCCESS) result = cuda_->cuCtxSynchronize();
  if (result != cuda::CUDA_SUCCESS) return failed("cuMemsetD8", result);
  cuda::CUdeviceptr base = 0;
  std::size_t size = 0;
  result = cuda_->cuMemGetAddressRange(&base, &size, address);
  if (result != cuda::CUDA_SUCCESS) return failed("cuMemGetAddressRange", result);
  // Who opens the handle gets all of the driver's block: it must not be another lease's as well.
  if (base != address || size != bytes) {
    return MakeError(
        Code::kInternal, Reason::kDriver,
        "the driver gave no block of its own to " + FormatBytes(bytes) + " on " + options_.gpu);
  }
  cuda::CUipcMemHandle handle{};
  result = cuda_->cuIpcGetMemHandle(&handle, address);
  if (result != cuda::CUDA_SUCCESS) return failed("cuIpcGetMemHandle", result);
  static_assert(sizeof reply.handle == sizeof handle.reserved);
  std::memcpy(reply.handle, handle.reserved, sizeof reply.handle);
  reply.offset = address - base;
  return {};
}

}  // namespace gpulease::ipc
