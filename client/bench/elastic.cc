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
constexpr std::uint64_t kReserve = 64 * kGiB;

// One process's own range that grows by chunks which another makes, without a broker.
class RawRange {
 public:
  RawRange(const playground::Gpu& gpu, Peer& peer, std::uint64_t step)
      : gpu_(gpu), peer_(peer), step_(step) {
    gpu.Check(gpu.cuda().cuMemAddressReserve(&address_, kReserve, 0, 0, 0), "cuMemAddressReserve");
    access_.location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
    access_.location.id = gpu.ordinal();
    access_.flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  RawRange(const RawRange&) = delete;
  RawRange& operator=(const RawRange&) = delete;
  ~RawRange() {
    const driver::CudaDriver& cuda = gpu_.cuda();
    if (!handles_.empty()) cuda.cuMemUnmap(address_, handles_.size() * step_);
    cuda.cuMemAddressFree(address_, kReserve);
    for (const cuda::CUmemGenericAllocationHandle handle : handles_) cuda.cuMemRelease(handle);
  }

  // What the driver's calls took, in µs.
  double Grow() {
    const driver::CudaDriver& cuda = gpu_.cuda();
    UniqueFd descriptor;
    const PeerReply made = peer_.Ask({.task = PeerTask::kMake, .size = step_}, &descriptor);
    cuda::CUmemGenericAllocationHandle handle = 0;
    const cuda::CUdeviceptr end = address_ + handles_.size() * step_;
    const Stopwatch watch;
    gpu_.Check(cuda.cuMemImportFromShareableHandle(
                   &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get())),
                   cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
               "cuMemImportFromShareableHandle");
    gpu_.Check(cuda.cuMemMap(end, step_, 0, handle, 0), "cuMemMap");
    gpu_.Check(cuda.cuMemSetAccess(end, step_, &access_, 1), "cuMemSetAccess");
    const double mapped = watch.micros();
    handles_.push_back(handle);
    return made.create_us + made.export_us + mapped;
  }

 private:
  const playground::Gpu& gpu_;
  Peer& peer_;
  const std::uint64_t step_;
  cuda::CUdeviceptr address_ = 0;
  cuda::CUmemAccessDesc access_{};
  std::vector<cuda::CUmemGenericAllocationHandle> handles_;
};

// By turns with the driver's calls, so that whatever else the machine does meets both.
void MeasureSteps(Bench& bench, const playground::Gpu& gpu, Client& client, Peer& peer,
                  std::uint64_t step, std::uint64_t steps, int times) {
  Samples raw_step, grow, shrink;
  for (int i = 0; i < times; ++i) {
    AllocateOptions options = DeviceMemory(bench, step);
    options.reserve_bytes = kReserve;
    Lease lease = client.Allocate(options);
    const Mapping mapped = lease.Map();
    RawRange raw(gpu, peer, step);
    raw.Grow();
    for (std::uint64_t n = 2; n <= steps; ++n) {
      const double driver = raw.Grow();
      const Stopwatch watch;
      lease.Resize(n * step);
      const double whole = watch.micros();
      // The first growth of all wakes everything up.
      if (n == 2) continue;
      raw_step.Add(driver);
      grow.Add(whole);
    }
    for (std::uint64_t n = steps - 1; n >= 1; --n) {
      const Stopwatch watch;
      lease.Resize(n * step);
      shrink.Add(watch.micros());
    }
  }
  bench.report.Add(kSection, "floor: create, export, import, map, set access", step, Unit::kMicros,
                   raw_step);
  bench.report.Add(kSection, "gpulease: grow a mapped lease of 64 GiB of addresses by", step,
                   Unit::kMicros, grow);
  bench.report.Add(kSection, "gpulease: shrink it by", step, Unit::kMicros, shrink);
  bench.report.AddRatio(kSection, "ratio: grow / its driver calls", step, grow.p50(),
                        raw_step.p50());
}

}  // namespace

void MeasureElastic(Bench& bench) {
  const playground::Gpu gpu(bench.simulated_directory, bench.gpu.uuid);
  Client client(OptionsOf(bench.runtime_dir, "bench"));
  Peer peer(bench);
  MeasureSteps(bench, gpu, client, peer, 2 * kMiB, bench.quick ? 16 : 256, bench.quick ? 2 : 4);
  // To 32 GiB, where the GPU has room for that twice.
  for (const GpuStatus& one : client.Node().gpus) {
    if (one.uuid == bench.gpu.uuid && one.free_bytes >= 72 * kGiB)
      MeasureSteps(bench, gpu, client, peer, 512 * kMiB, 64, bench.quick ? 1 : 4);
  }
}

}  // namespace gpulease::bench
