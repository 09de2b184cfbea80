// SPDX-License-Identifier: Apache-2.0
#include "client/examples/demo/ring_worker.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>

#include "client/examples/demo/pattern.h"
#include "client/playground/private_daemon.h"

namespace gpulease::demo {
namespace {

using playground::Gpu;
using playground::Leader;

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string Rate(std::uint64_t bytes, double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f", static_cast<double>(bytes) / seconds / 1e6);
  return text;
}

ClientOptions Options(int number, const std::string& runtime_dir) {
  ClientOptions options;
  options.runtime_dir = runtime_dir;
  options.program = "worker " + std::to_string(number);
  return options;
}

std::string BufferName(const std::string& number, int which) {
  return "ring-" + number + (which == 0 ? "a" : "b");
}

}  // namespace

int RingWorker::Run(int number, const std::string& runtime_dir) {
  Leader leader;
  std::optional<RingWorker> worker;
  return leader.Serve([&](const std::vector<std::string>& words) {
    if (!worker) worker.emplace(number, runtime_dir);
    return worker->Do(words, leader);
  });
}

RingWorker::RingWorker(int number, const std::string& runtime_dir)
    : number_(number),
      client_(Options(number, runtime_dir)),
      simulated_directory_(playground::SimulatedDirectory(client_.Node(), runtime_dir)) {}

std::string RingWorker::Do(const std::vector<std::string>& words, Leader& leader) {
  const std::string& command = words.at(0);
  if (command == "lease") return LeaseBuffers(words.at(1), std::stoull(words.at(2)));
  if (command == "open") return OpenNeighbour(words.at(1));
  if (command == "close") return CloseNeighbour();
  if (command == "fill") return Fill();
  if (command == "copy") return Copy(std::stoi(words.at(1)));
  if (command == "verify") {
    return Verify(words.at(1) == "neighbour", std::stoi(words.at(2)), std::stoi(words.at(3)));
  }
  if (command == "scratch") return LeaseScratch(std::stoull(words.at(1)));
  if (command == "copy-for-ever") CopyForEver(leader);
  throw std::runtime_error("unknown command " + command);
}

RingWorker::Buffer RingWorker::MakeDeviceBuffer(const std::string& name, std::uint64_t size) {
  AllocateOptions options;
  options.size_bytes = size;
  options.gpu_uuid = gpu_->uuid();
  options.name = name;
  options.wait = std::chrono::seconds(10);
  Buffer buffer;
  buffer.lease = client_.Allocate(options);
  buffer.mapped = buffer.lease.Map();
  return buffer;
}

std::string RingWorker::LeaseBuffers(const std::string& gpu_uuid, std::uint64_t size) {
  gpu_.emplace(simulated_directory_, gpu_uuid);
  for (int which : {0, 1}) {
    own_[which] = MakeDeviceBuffer(BufferName(std::to_string(number_), which), size);
    // A simulated GPU's memory comes into being with its first use: not while speed is shown.
    gpu_->Check(gpu_->cuda().cuMemsetD8(own_[which].mapped.device_pointer(), 0, size),
                "cuMemsetD8");
  }
  AllocateOptions options;
  options.size_bytes = size;
  options.kind = MemoryKind::kHost;
  options.gpu_uuid = gpu_uuid;
  options.name = "staging-" + std::to_string(number_);
  staging_.lease = client_.Allocate(options);
  staging_.mapped = staging_.lease.Map({.register_with_cuda = true});
  return "ok";
}

std::string RingWorker::OpenNeighbour(const std::string& number) {
  for (int which : {0, 1}) {
    Buffer& buffer = neighbour_[which];
    buffer.lease = client_.Open(BufferName(number, which), Access::kReadOnly);
    MapOptions options;
    const std::string& uuid = buffer.lease.gpu_uuid();
    far_gpu_.reset();
    if (gpu_->Reaches(uuid)) {
      if (uuid != gpu_->uuid()) options.peer_gpu_uuids = {gpu_->uuid()};
    } else {
      far_gpu_.emplace(simulated_directory_, uuid);
      gpu_->MakeCurrent();
    }
    buffer.mapped = buffer.lease.Map(options);
  }
  return "ok";
}

std::string RingWorker::CloseNeighbour() {
  for (Buffer& buffer : neighbour_) buffer = Buffer();
  return "ok";
}

std::string RingWorker::Fill() {
  FillPattern(staging_.mapped.bytes(), number_);
  const std::uint64_t size = own_[0].mapped.size_bytes();
  const Stopwatch watch;
  gpu_->Check(gpu_->cuda().cuMemcpyHtoDAsync(own_[0].mapped.device_pointer(),
                                             staging_.mapped.host_pointer(), size, gpu_->stream()),
              "cuMemcpyHtoDAsync");
  gpu_->Synchronize();
  return Rate(size, watch.seconds());
}

void RingWorker::CopyBetween(const Buffer& to, const Buffer& from, std::uint64_t size) {
  const driver::CudaDriver& cuda = gpu_->cuda();
  if (!far_gpu_) {
    gpu_->Check(cuda.cuMemcpyDtoDAsync(to.mapped.device_pointer(), from.mapped.device_pointer(),
                                       size, gpu_->stream()),
                "cuMemcpyDtoDAsync");
  } else {
    // No way between these two GPUs: through pinned memory.
    far_gpu_->MakeCurrent();
    far_gpu_->Check(cuda.cuMemcpyDtoHAsync(staging_.mapped.host_pointer(),
                                           from.mapped.device_pointer(), size, far_gpu_->stream()),
                    "cuMemcpyDtoHAsync");
    far_gpu_->Synchronize();
    gpu_->MakeCurrent();
    gpu_->Check(cuda.cuMemcpyHtoDAsync(to.mapped.device_pointer(), staging_.mapped.host_pointer(),
                                       size, gpu_->stream()),
                "cuMemcpyHtoDAsync");
  }
  gpu_->Synchronize();
}

std::string RingWorker::Copy(int front) {
  const std::uint64_t size = own_[0].mapped.size_bytes();
  const Stopwatch watch;
  CopyBetween(own_[1 - front], neighbour_[front], size);
  return Rate(size, watch.seconds());
}

std::string RingWorker::Verify(bool neighbour, int which, int origin) {
  const Buffer& buffer = (neighbour ? neighbour_ : own_)[which];
  const std::uint64_t size = buffer.mapped.size_bytes();
  const Gpu& gpu = neighbour && far_gpu_ ? *far_gpu_ : *gpu_;
  gpu.MakeCurrent();
  const Stopwatch watch;
  gpu.Check(gpu.cuda().cuMemcpyDtoHAsync(staging_.mapped.host_pointer(),
                                         buffer.mapped.device_pointer(), size, gpu.stream()),
            "cuMemcpyDtoHAsync");
  gpu.Synchronize();
  const double seconds = watch.seconds();
  gpu_->MakeCurrent();
  const std::uint64_t wrong = CountWrongBytes(staging_.mapped.bytes().first(size), origin);
  return Rate(size, seconds) + " " + std::to_string(wrong);
}

std::string RingWorker::LeaseScratch(std::uint64_t size) {
  scratch_ = MakeDeviceBuffer("scratch-" + std::to_string(number_), size);
  return "ok";
}

void RingWorker::CopyForEver(Leader& leader) {
  const std::uint64_t size = std::min(own_[0].mapped.size_bytes(), scratch_.mapped.size_bytes());
  for (bool first = true; true; first = false) {
    CopyBetween(scratch_, own_[0], size);
    if (first) leader.Answer("copying");
  }
}

}  // namespace gpulease::demo
