// SPDX-License-Identifier: Apache-2.0
#include "client/bench/peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <span>
#include <stdexcept>

#include "base/descriptor_channel.h"
#include "client/playground/gpu.h"
#include "driver/gpu_probe.h"

namespace gpulease::bench {
namespace {

constexpr int kChannel = 3;

template <typename T>
Status SendStruct(int socket, const T& message, std::span<const int> descriptors) {
  return SendMessage(socket, std::as_bytes(std::span<const T, 1>(&message, 1)), descriptors);
}

class Worker {
 public:
  Worker(const std::string& runtime_dir, const std::string& simulated_directory,
         const std::string& gpu_uuid)
      : gpu_(simulated_directory, gpu_uuid), client_(OptionsOf(runtime_dir, "bench peer")) {
    // Exporting is 30 times slower while the process has no other exported descriptor open; a
    // broker keeps one.
    PeerReply ignored;
    anchor_ = Make(2 << 20, ignored);
    lending_.gpu_uuid = gpu_uuid;
    lending_.wait = std::chrono::seconds(10);
  }

  void Do(const PeerRequest& request, PeerReply& reply, UniqueFd& descriptor) {
    switch (request.task) {
      case PeerTask::kEcho:
        return;
      case PeerTask::kMake:
        descriptor = Make(request.size, reply);
        return;
      case PeerTask::kLend:
        lending_.size_bytes = request.size;
        lent_ = client_.Allocate(lending_);
        reply.lease_id = lent_.id();
        return;
      case PeerTask::kTakeBack:
        lent_.Release();
        return;
      case PeerTask::kOpenIpc: {
        const Stopwatch watch;
        gpu_.Check(gpu_.cuda().cuIpcOpenMemHandle(&opened_, request.handle,
                                                  cuda::kIpcMemLazyEnablePeerAccess),
                   "cuIpcOpenMemHandle");
        reply.open_us = watch.micros();
        return;
      }
      case PeerTask::kCloseIpc:
        gpu_.Check(gpu_.cuda().cuIpcCloseMemHandle(opened_), "cuIpcCloseMemHandle");
        return;
    }
  }

 private:
  UniqueFd Make(std::uint64_t size, PeerReply& reply) {
    const driver::CudaDriver& cuda = gpu_.cuda();
    const cuda::CUmemAllocationProp properties = driver::ChunkProperties(gpu_.ordinal());
    cuda::CUmemGenericAllocationHandle handle = 0;
    int descriptor = -1;
    Stopwatch watch;
    gpu_.Check(cuda.cuMemCreate(&handle, size, &properties, 0), "cuMemCreate");
    reply.create_us = watch.Lap();
    const cuda::CUresult exported = cuda.cuMemExportToShareableHandle(
        &descriptor, handle, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    reply.export_us = watch.Lap();
    cuda.cuMemRelease(handle);
    gpu_.Check(exported, "cuMemExportToShareableHandle");
    return UniqueFd(descriptor);
  }

  playground::Gpu gpu_;
  Client client_;
  UniqueFd anchor_;
  AllocateOptions lending_;
  Lease lent_;
  cuda::CUdeviceptr opened_ = 0;
};

}  // namespace

Peer::Peer(const Bench& bench) : worker_(StartWorker(bench, "peer")) { Ask({}); }

PeerReply Peer::Ask(const PeerRequest& request, UniqueFd* descriptor) {
  PeerReply reply;
  const Status sent = SendStruct(worker_.socket(), request, {});
  Result<ReceivedMessage> received = ReceiveMessage(
      worker_.socket(), std::as_writable_bytes(std::span<PeerReply, 1>(&reply, 1)), false);
  if (!sent.ok() || !received.ok() || received->size != sizeof reply) {
    throw std::runtime_error("the peer process is gone");
  }
  if (reply.failure[0] != '\0') throw std::runtime_error(std::string("peer: ") + reply.failure);
  if (descriptor != nullptr && !received->descriptors.empty()) {
    *descriptor = std::move(received->descriptors.front());
  }
  return reply;
}

int RunPeer(const std::string& runtime_dir, const std::string& simulated_directory,
            const std::string& gpu_uuid) {
  std::optional<Worker> worker;
  while (true) {
    PeerRequest request;
    const Result<ReceivedMessage> received = ReceiveMessage(
        kChannel, std::as_writable_bytes(std::span<PeerRequest, 1>(&request, 1)), false);
    if (!received.ok() || received->size != sizeof request) return EXIT_SUCCESS;
    PeerReply reply;
    UniqueFd descriptor;
    try {
      if (!worker) worker.emplace(runtime_dir, simulated_directory, gpu_uuid);
      worker->Do(request, reply, descriptor);
    } catch (const std::exception& error) {
      std::snprintf(reply.failure, sizeof reply.failure, "%s", error.what());
    }
    const int with = descriptor.get();
    const Status sent = SendStruct(
        kChannel, reply, descriptor ? std::span<const int>(&with, 1) : std::span<const int>());
    if (!sent.ok()) return EXIT_SUCCESS;
  }
}

}  // namespace gpulease::bench
