// SPDX-License-Identifier: Apache-2.0
//
// Bandwidth: copies in leased memory against the same copies in memory that the process got from
// the driver and the kernel by itself.
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <stdexcept>

#include "base/bytes.h"
#include "client/bench/bench.h"
#include "client/playground/gpu.h"

namespace gpulease::bench {
namespace {

const std::string kSection = "bandwidth";

// Two device buffers and one pinned host buffer of the process's own.
class PlainMemory {
 public:
  PlainMemory(const playground::Gpu& gpu, std::uint64_t size) : gpu_(gpu), size_(size) {
    host_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (host_ == MAP_FAILED) throw std::runtime_error("mmap of plain host memory failed");
    std::memset(host_, 1, size);
    gpu.Check(gpu.cuda().cuMemHostRegister(host_, size, cuda::kMemHostRegisterPortable),
              "cuMemHostRegister");
    for (cuda::CUdeviceptr& address : device_) {
      gpu.Check(gpu.cuda().cuMemAlloc(&address, size), "cuMemAlloc");
      gpu.Check(gpu.cuda().cuMemsetD8(address, 1, size), "cuMemsetD8");
    }
  }
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;
  ~PlainMemory() {
    for (const cuda::CUdeviceptr address : device_) gpu_.cuda().cuMemFree(address);
    gpu_.cuda().cuMemHostUnregister(host_);
    munmap(host_, size_);
  }

  void* host() const { return host_; }
  cuda::CUdeviceptr device(int which) const { return device_[which]; }

 private:
  const playground::Gpu& gpu_;
  const std::uint64_t size_;
  void* host_ = nullptr;
  cuda::CUdeviceptr device_[2] = {};
};

class LeasedMemory {
 public:
  LeasedMemory(const Bench& bench, const playground::Gpu& gpu, Client& client, std::uint64_t size) {
    for (int which : {0, 1}) {
      device_[which] = client.Allocate(DeviceMemory(bench, size));
      mapped_[which] = device_[which].Map();
      gpu.Check(gpu.cuda().cuMemsetD8(device(which), 1, size), "cuMemsetD8");
    }
    AllocateOptions options = DeviceMemory(bench, size);
    options.kind = MemoryKind::kHost;
    host_ = client.Allocate(options);
    mapped_host_ = host_.Map({.register_with_cuda = true});
    std::memset(host(), 1, size);
  }
  void* host() const { return mapped_host_.host_pointer(); }
  cuda::CUdeviceptr device(int which) const { return mapped_[which].device_pointer(); }

 private:
  Lease device_[2];
  Lease host_;
  Mapping mapped_[2];
  Mapping mapped_host_;
};

// GB/s of `copies` of `size`, timed by events on a real GPU; what a simulated one copies is done
// when the call returns.
class CopyClock {
 public:
  CopyClock(const Bench& bench, const playground::Gpu& gpu)
      : gpu_(gpu), events_(!bench.node.simulated) {
    for (cuda::CUevent& event : event_) {
      gpu.Check(gpu.cuda().cuEventCreate(&event, cuda::kEventDefault), "cuEventCreate");
    }
  }
  CopyClock(const CopyClock&) = delete;
  CopyClock& operator=(const CopyClock&) = delete;
  ~CopyClock() {
    for (const cuda::CUevent event : event_) gpu_.cuda().cuEventDestroy(event);
  }

  double Rate(std::uint64_t size, int copies, const std::function<cuda::CUresult()>& copy) {
    const driver::CudaDriver& cuda = gpu_.cuda();
    gpu_.Synchronize();
    const Stopwatch watch;
    gpu_.Check(cuda.cuEventRecord(event_[0], gpu_.stream()), "cuEventRecord");
    for (int i = 0; i < copies; ++i) gpu_.Check(copy(), "copy");
    gpu_.Check(cuda.cuEventRecord(event_[1], gpu_.stream()), "cuEventRecord");
    gpu_.Synchronize();
    double micros = watch.micros();
    if (events_) {
      float millis = 0;
      gpu_.Check(cuda.cuEventElapsedTime(&millis, event_[0], event_[1]), "cuEventElapsedTime");
      micros = static_cast<double>(millis) * 1000;
    }
    return static_cast<double>(size) * copies / micros / 1000;
  }

 private:
  const playground::Gpu& gpu_;
  const bool events_;
  cuda::CUevent event_[2] = {};
};

struct Direction {
  const char* name;
  Samples plain;
  Samples leased;
};

}  // namespace

void MeasureBandwidth(Bench& bench) {
  const playground::Gpu gpu(bench.simulated_directory, bench.gpu.uuid);
  Client client(OptionsOf(bench.runtime_dir, "bench"));
  const std::uint64_t size =
      bench.node.simulated ? (bench.quick ? 16 * kMiB : 64 * kMiB) : 512 * kMiB;
  const int copies = bench.node.simulated ? 1 : 4;
  const PlainMemory plain(gpu, size);
  const LeasedMemory leased(bench, gpu, client, size);
  CopyClock clock(bench, gpu);
  Direction directions[] = {
      {"host to device", {}, {}}, {"device to host", {}, {}}, {"device to device", {}, {}}};
  const driver::CudaDriver& cuda = gpu.cuda();
  const auto rate = [&](int direction, const auto& memory) {
    return clock.Rate(size, copies, [&] {
      switch (direction) {
        case 0:
          return cuda.cuMemcpyHtoDAsync(memory.device(0), memory.host(), size, gpu.stream());
        case 1:
          return cuda.cuMemcpyDtoHAsync(memory.host(), memory.device(0), size, gpu.stream());
        default:
          return cuda.cuMemcpyDtoDAsync(memory.device(1), memory.device(0), size, gpu.stream());
      }
    });
  };
  const Rounds::Limits limits = bench.quick
                                    ? Rounds::Limits{1, 10, std::chrono::milliseconds(2000)}
                                    : Rounds::Limits{3, 100, std::chrono::milliseconds(12000)};
  for (Rounds rounds(limits); rounds.Next();) {
    for (int direction : {0, 1, 2}) {
      // Who is first changes, so that neither always finds the caches as the other left them.
      const bool plain_first = rounds.number() % 2 == 0;
      double of_plain = plain_first ? rate(direction, plain) : 0;
      const double of_leased = rate(direction, leased);
      if (!plain_first) of_plain = rate(direction, plain);
      if (!rounds.counts()) continue;
      directions[direction].plain.Add(of_plain);
      directions[direction].leased.Add(of_leased);
    }
  }
  for (const Direction& direction : directions) {
    const std::string name = direction.name;
    bench.report.Add(kSection, name + ", plain", size, Unit::kGigabytesPerSecond, direction.plain);
    bench.report.Add(kSection, name + ", leased", size, Unit::kGigabytesPerSecond,
                     direction.leased);
    bench.report.AddRatio(kSection, "ratio: " + name + ", leased / plain", size,
                          direction.leased.p50(), direction.plain.p50());
  }
}

}  // namespace gpulease::bench
