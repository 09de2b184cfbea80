// SPDX-License-Identifier: Apache-2.0
//
// Elastic: a lease that grows by small steps under a pointer that does not move, as a key-value
// cache does, and what each step costs beside the driver calls that nobody can avoid.
#include <vector>

#include "base/bytes.h"
#include "client/bench/bench.h"
#include "client/bench/peer.h"
#include "client/playground/gpu.h"

namespace gpulease::bench {
namespace {

const std::string kSection = "elastic";
constexpr std::uint64_t kStep = 2 * kMiB;

// One process's own range that grows by chunks which another makes, without a broker.
class RawRange {
 public:
  RawRange(const playground::Gpu& gpu, Peer& peer, std::uint64_t reserve)
      : gpu_(gpu), peer_(peer), reserve_(reserve) {
    gpu.Check(gpu.cuda().cuMemAddressReserve(&address_, reserve, 0, 0, 0), "cuMemAddressReserve");
    access_.location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
    access_.location.id = gpu.ordinal();
    access_.flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  RawRange(const RawRange&) = delete;
  RawRange& operator=(const RawRange&) = delete;
  ~RawRange() {
    const driver::CudaDriver& cuda = gpu_.cuda();
    if (!handles_.empty()) cuda.cuMemUnmap(address_, handles_.size() * kStep);
    cuda.cuMemAddressFree(address_, reserve_);
    for (const cuda::CUmemGenericAllocationHandle handle : handles_) cuda.cuMemRelease(handle);
  }

  // What the driver's calls took, in µs.
  double Grow() {
    const driver::CudaDriver& cuda = gpu_.cuda();
    UniqueFd descriptor;
    const PeerReply made = peer_.Ask({.task = PeerTask::kMake, .size = kStep}, &descriptor);
    cuda::CUmemGenericAllocationHandle handle = 0;
    const cuda::CUdeviceptr end = address_ + handles_.size() * kStep;
    const Stopwatch watch;
    gpu_.Check(cuda.cuMemImportFromShareableHandle(
                   &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get())),
                   cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
               "cuMemImportFromShareableHandle");
    gpu_.Check(cuda.cuMemMap(end, kStep, 0, handle, 0), "cuMemMap");
    gpu_.Check(cuda.cuMemSetAccess(end, kStep, &access_, 1), "cuMemSetAccess");
    const double mapped = watch.micros();
    handles_.push_back(handle);
    return made.create_us + made.export_us + mapped;
  }

 private:
  const playground::Gpu& gpu_;
  Peer& peer_;
  const std::uint64_t reserve_;
  cuda::CUdeviceptr address_ = 0;
  cuda::CUmemAccessDesc access_{};
  std::vector<cuda::CUmemGenericAllocationHandle> handles_;
};

}  // namespace

void MeasureElastic(Bench& bench) {
  const playground::Gpu gpu(bench.simulated_directory, bench.gpu.uuid);
  Client client(OptionsOf(bench.runtime_dir, "bench"));
  Peer peer(bench);
  const std::uint64_t steps = bench.quick ? 16 : 256;
  const int times = bench.quick ? 2 : 4;
  Samples raw_step, grow, shrink;
  for (int i = 0; i < times; ++i) {
    AllocateOptions options = DeviceMemory(bench, kStep);
    options.reserve_bytes = 64 * kGiB;
    Lease lease = client.Allocate(options);
    const Mapping mapped = lease.Map();
    RawRange raw(gpu, peer, options.reserve_bytes);
    raw.Grow();
    // By turns, so that whatever else the machine does meets both.
    for (std::uint64_t step = 2; step <= steps; ++step) {
      const double driver = raw.Grow();
      const Stopwatch watch;
      lease.Resize(step * kStep);
      const double whole = watch.micros();
      // The first growth of all wakes everything up.
      if (step == 2) continue;
      raw_step.Add(driver);
      grow.Add(whole);
    }
    for (std::uint64_t step = steps - 1; step >= 1; --step) {
      const Stopwatch watch;
      lease.Resize(step * kStep);
      shrink.Add(watch.micros());
    }
  }
  bench.report.Add(kSection, "floor: create, export, import, map, set access", kStep, Unit::kMicros,
                   raw_step);
  bench.report.Add(kSection, "gpulease: grow a mapped lease of 64 GiB of addresses by", kStep,
                   Unit::kMicros, grow);
  bench.report.Add(kSection, "gpulease: shrink it by", kStep, Unit::kMicros, shrink);
  bench.report.AddRatio(kSection, "ratio: grow / its driver calls", kStep, grow.p50(),
                        raw_step.p50());
}

}  // namespace gpulease::bench
