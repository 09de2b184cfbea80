// SPDX-License-Identifier: Apache-2.0
//
// Latency: how long a process waits for a pointer that it can use, and what of that no broker can
// avoid: a message there and back, and the driver's calls.
#include <optional>
#include <sstream>

#include "base/bytes.h"
#include "client/bench/peer.h"
#include "client/playground/gpu.h"

namespace gpulease::bench {
namespace {

const std::string kSection = "latency";

// One size's loop: every way some times in a row, then the next, round after round. In a row, since
// that is how a loop meets it, and one way must not pay for processors that fell asleep while
// another was measured; by turns, so that whatever else the machine does meets all of them. A floor
// is the sum of its parts in one pass: the peer is asked for a chunk, then a message goes there and
// back, then the chunk is mapped, in the rhythm in which a lease is made and mapped. (A message
// sent back and forth without pause takes a few microseconds less, as nobody falls asleep.)
class Ways {
 public:
  Ways(Bench& bench, const playground::Gpu& gpu, Client& client, Peer& peer, std::uint64_t size)
      : bench_(bench), gpu_(gpu), client_(client), peer_(peer), size_(size) {}

  void Round(bool counts) {
    for (void (Ways::*way)() :
         {&Ways::Floors, &Ways::WithoutBroker, &Ways::AllocateAndRelease, &Ways::Open}) {
      for (int i = 0; i < kInARow; ++i) {
        // The first of a row wakes the processors up.
        counts_ = counts && i > 0;
        (this->*way)();
      }
    }
  }

  void Tell() const {
    const auto add = [&](const char* name, const Samples& samples) {
      bench_.report.Add(kSection, name, size_, Unit::kMicros, samples);
    };
    add("floor: socket there and back", ping_);
    add("floor: cuMemCreate", create_);
    add("floor: cuMemExportToShareableHandle", export_);
    add("floor: cuMemImportFromShareableHandle", import_);
    add("floor: cuMemAddressReserve + cuMemMap", map_);
    add("floor: cuMemSetAccess", access_);
    add("floor: cuMemUnmap + cuMemAddressFree + cuMemRelease", unmap_);
    add("no broker: cuMemAlloc", plain_alloc_);
    add("no broker: cuIpcGetMemHandle", ipc_get_);
    add("no broker: handle over a socket, there and back", ipc_hand_over_);
    add("no broker: cuIpcOpenMemHandle", ipc_open_);
    add("no broker: all four, usable in two processes", ipc_whole_);
    add("no broker: the last three, usable in the second", ipc_share_);
    add("gpulease: allocate, the call", allocate_);
    add("gpulease: allocate to usable pointer", allocate_usable_);
    add("gpulease: open, the call", open_);
    add("gpulease: open to usable pointer", open_usable_);
    add("gpulease: release, unmapping included", release_);
    add("gpulease: close what was opened, unmapping included", close_);

    add("floor of allocate: sum of the first six", floor_allocate_);
    add("floor of open: socket, import, map, access", floor_open_);
    const auto ratio = [&](const char* name, double numerator, double denominator) {
      bench_.report.AddRatio(kSection, name, size_, numerator, denominator);
    };
    ratio("ratio: allocate / its floor", allocate_usable_.p50(), floor_allocate_.p50());
    ratio("ratio: open / its floor", open_usable_.p50(), floor_open_.p50());
    ratio("ratio: release / (socket + unmap)", release_.p50(), floor_release_.p50());
    ratio("ratio: allocate / no broker's four", allocate_usable_.p50(), ipc_whole_.p50());
    ratio("ratio: open / no broker's last three", open_usable_.p50(), ipc_share_.p50());
    ratio("ratio: allocate and open / no broker's four",
          allocate_usable_.p50() + open_usable_.p50(), ipc_whole_.p50());
  }

  const Samples& ping() const { return ping_; }

 private:
  static constexpr int kInARow = 50;

  void Count(Samples& samples, double value) const {
    if (counts_) samples.Add(value);
  }

  void Floors() {
    UniqueFd descriptor;
    const PeerReply made = peer_.Ask({.task = PeerTask::kMake, .size = size_}, &descriptor);
    const driver::CudaDriver& cuda = gpu_.cuda();
    cuda::CUmemGenericAllocationHandle handle = 0;
    cuda::CUdeviceptr address = 0;
    cuda::CUmemAccessDesc access{};
    access.location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = gpu_.ordinal();
    access.flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    Stopwatch watch;
    peer_.Ask({});
    const double ping = watch.Lap();
    gpu_.Check(cuda.cuMemImportFromShareableHandle(
                   &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get())),
                   cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
               "cuMemImportFromShareableHandle");
    const double import = watch.Lap();
    gpu_.Check(cuda.cuMemAddressReserve(&address, size_, 0, 0, 0), "cuMemAddressReserve");
    gpu_.Check(cuda.cuMemMap(address, size_, 0, handle, 0), "cuMemMap");
    const double map = watch.Lap();
    gpu_.Check(cuda.cuMemSetAccess(address, size_, &access, 1), "cuMemSetAccess");
    const double set_access = watch.Lap();
    gpu_.Check(cuda.cuMemUnmap(address, size_), "cuMemUnmap");
    gpu_.Check(cuda.cuMemAddressFree(address, size_), "cuMemAddressFree");
    gpu_.Check(cuda.cuMemRelease(handle), "cuMemRelease");
    const double unmap = watch.Lap();
    const double open = ping + import + map + set_access;
    Count(ping_, ping);
    Count(create_, made.create_us);
    Count(export_, made.export_us);
    Count(import_, import);
    Count(map_, map);
    Count(access_, set_access);
    Count(unmap_, unmap);
    Count(floor_allocate_, open + made.create_us + made.export_us);
    Count(floor_open_, open);
    Count(floor_release_, ping + unmap);
  }

  void WithoutBroker() {
    const driver::CudaDriver& cuda = gpu_.cuda();
    cuda::CUdeviceptr address = 0;
    PeerRequest request{.task = PeerTask::kOpenIpc, .size = size_};
    const Stopwatch whole;
    Stopwatch watch;
    gpu_.Check(cuda.cuMemAlloc(&address, size_), "cuMemAlloc");
    const double alloc = watch.Lap();
    gpu_.Check(cuda.cuIpcGetMemHandle(&request.handle, address), "cuIpcGetMemHandle");
    const double get = watch.Lap();
    const PeerReply opened = peer_.Ask(request);
    const double hand_over = watch.Lap() - opened.open_us;
    const double all = whole.micros();
    Count(plain_alloc_, alloc);
    Count(ipc_get_, get);
    Count(ipc_hand_over_, hand_over);
    Count(ipc_open_, opened.open_us);
    Count(ipc_whole_, all);
    Count(ipc_share_, get + hand_over + opened.open_us);
    peer_.Ask({.task = PeerTask::kCloseIpc});
    gpu_.Check(cuda.cuMemFree(address), "cuMemFree");
  }

  void AllocateAndRelease() {
    const AllocateOptions options = DeviceMemory(bench_, size_);
    const Stopwatch whole;
    Lease lease = client_.Allocate(options);
    Count(allocate_, whole.micros());
    Mapping mapped = lease.Map();
    Count(allocate_usable_, whole.micros());
    const Stopwatch watch;
    mapped = Mapping();
    lease.Release();
    Count(release_, watch.micros());
  }

  void Open() {
    const PeerReply lent = peer_.Ask({.task = PeerTask::kLend, .size = size_});
    const Stopwatch whole;
    Lease lease = client_.Open(lent.lease_id);
    Count(open_, whole.micros());
    Mapping mapped = lease.Map();
    Count(open_usable_, whole.micros());
    const Stopwatch watch;
    mapped = Mapping();
    lease.Close();
    Count(close_, watch.micros());
    peer_.Ask({.task = PeerTask::kTakeBack});
  }

  Bench& bench_;
  const playground::Gpu& gpu_;
  Client& client_;
  Peer& peer_;
  const std::uint64_t size_;
  bool counts_ = false;
  Samples ping_, create_, export_, import_, map_, access_, unmap_;
  Samples floor_allocate_, floor_open_, floor_release_;
  Samples plain_alloc_, ipc_get_, ipc_hand_over_, ipc_open_, ipc_whole_, ipc_share_;
  Samples allocate_, allocate_usable_, open_, open_usable_, release_, close_;
};

}  // namespace

void MeasureLatency(Bench& bench) {
  const playground::Gpu gpu(bench.simulated_directory, bench.gpu.uuid);
  Client client(OptionsOf(bench.runtime_dir, "bench"));
  Peer peer(bench);
  playground::Worker grpc_server = StartWorker(bench, "grpc-server");
  grpc_server.Ask("start");
  playground::Worker grpc_client = StartWorker(bench, "grpc-client");
  grpc_client.Ask("run 50");

  const Rounds::Limits limits = bench.quick
                                    ? Rounds::Limits{1, 3, std::chrono::milliseconds(2500)}
                                    : Rounds::Limits{1, 40, std::chrono::milliseconds(12000)};
  constexpr int kGrpcEvery = 10;
  Samples ping;
  Samples grpc;
  Samples get_node;
  std::vector<Ways> sizes;
  for (const std::uint64_t size : {2 * kMiB, 64 * kMiB, kGiB}) {
    Ways& ways = sizes.emplace_back(bench, gpu, client, peer, size);
    for (Rounds rounds(limits); rounds.Next();) {
      ways.Round(rounds.counts());
      for (int i = 0; i < kGrpcEvery; ++i) {
        const Stopwatch watch;
        client.Node();
        if (rounds.counts() && i > 0) get_node.Add(watch.micros());
      }
      std::istringstream values(grpc_client.Ask("run " + std::to_string(kGrpcEvery)).text);
      for (double value; values >> value;) {
        if (rounds.counts()) grpc.Add(value);
      }
    }
    ping.Add(ways.ping());
  }
  bench.report.Add(kSection, "socket, SOCK_SEQPACKET, there and back", 0, Unit::kMicros, ping);
  bench.report.Add(kSection, "gRPC, an empty call: stock C++ client and server", 0, Unit::kMicros,
                   grpc);
  bench.report.Add(kSection, "gpulease: GetNode, from the SDK to the daemon and back", 0,
                   Unit::kMicros, get_node);
  bench.report.AddRatio(kSection, "ratio: GetNode / gRPC's empty call", 0, get_node.p50(),
                        grpc.p50());
  for (const Ways& ways : sizes) ways.Tell();
}

}  // namespace gpulease::bench
