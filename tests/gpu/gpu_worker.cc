// SPDX-License-Identifier: Apache-2.0
//
// gpulease-gpu-worker: one client process of the GPU tests. It does what its arguments say, answers
// with a line, and stays until its input ends where it says so.
//
//   fill NAME BYTES SEED           leases, fills by a kernel, "filled", stays
//   fill-many NAME COUNT BYTES SEED  COUNT leases NAME-0, NAME-1, ... of BYTES, filled by SEED,
//   SEED + 1 check-many NAME COUNT SEED       opens them read-only, "wrong N" over all of them
//   load NAME BYTES SEED [half]    LoadOrAttach, to last: "filled" and sealed by a kernel, or
//   "wrong N";
//                                  with `half` only half is filled, "half", and it stays
//   elastic BYTES STEP             a lease of STEP bytes grows to BYTES in steps while a kernel
//   works on
//                                  its start, and shrinks: "wrong N, MICROSECONDS a step"
//   suspend BYTES                  fills a lease, suspends and resumes it twice, the room prepared:
//                                  "wrong N, suspend S, resume S, copy S S": the second time's
//                                  seconds, beside those of plain copies out of and into its memory
//   check NAME SEED                opens read-only, "wrong N" by a kernel
//   check-zero BYTES               leases with patience, "nonzero N"
//   publish NAME BYTES SEED SECONDS  leases, starts kernels that write for so long and one that
//   fills,
//                                  publishes, "published", stays
//   await NAME SEED [stream]       opens read-only, "waits", waits for what is published, "wrong N"
//   store NAME                     opens read-only and stores by a kernel: the driver's name for it
//   scribble NAME BYTES SECONDS    leases, starts kernels that write for so long, "started", stays
//   open NAME UID                  as that user: "opened" or the error's number
//   rounds COUNT BYTES             leases, maps, releases COUNT times: "done"
#include <gpulease/gpulease.h>
#include <grp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/gpu_kernels.h"

namespace gpulease::gpu_test {
namespace {

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void Stay() {
  while (std::getchar() != EOF) {
  }
}

int Main(int argc, char** argv) {
  const auto argument = [&](int index) { return std::string(index < argc ? argv[index] : ""); };
  const std::string verb = argument(1);
  if (verb == "open") {
    const auto uid = static_cast<uid_t>(std::stoul(argument(3)));
    if (setgroups(0, nullptr) != 0 || setgid(uid) != 0 || setuid(uid) != 0) return 3;
  }
  Client client({.program = "gpu-worker"});
  if (verb == "fill" || verb == "scribble") {
    Lease lease = client.Allocate({.size_bytes = std::stoull(argument(3)),
                                   .name = argument(2),
                                   .mode = 0644,
                                   .wait = std::chrono::seconds(60)});
    Mapping mapping = lease.Map();
    GpuKernels kernels(mapping.device_ordinal());
    const std::uint64_t words = mapping.size_bytes() / 4;
    if (verb == "fill") {
      kernels.Fill(mapping.device_pointer(), words,
                   static_cast<std::uint32_t>(std::stoul(argument(4))));
      Say("filled");
    } else {
      for (std::uint64_t i = 0; i < std::stoull(argument(4)); ++i) {
        kernels.Scribble(mapping.device_pointer(), words, 0xdeadbeef, 1'000'000'000);
      }
      Say("started");
    }
    Stay();
  } else if (verb == "fill-many") {
    std::vector<Lease> leases;
    std::vector<Mapping> mappings;
    std::optional<GpuKernels> kernels;
    for (unsigned long i = 0; i < std::stoul(argument(3)); ++i) {
      leases.push_back(client.Allocate({.size_bytes = std::stoull(argument(4)),
                                        .name = argument(2) + "-" + std::to_string(i),
                                        .mode = 0644}));
      mappings.push_back(leases.back().Map());
      if (!kernels) kernels.emplace(mappings.back().device_ordinal());
      kernels->Fill(mappings.back().device_pointer(), mappings.back().size_bytes() / 4,
                    static_cast<std::uint32_t>(std::stoul(argument(5)) + i));
    }
    Say("filled");
    Stay();
  } else if (verb == "elastic") {
    const std::uint64_t size = std::stoull(argument(2)), step = std::stoull(argument(3));
    Lease lease = client.Allocate({.size_bytes = 2 << 20, .reserve_bytes = 2 * size});
    Mapping mapping = lease.Map();
    const std::uint64_t pointer = mapping.device_pointer();
    GpuKernels kernels(mapping.device_ordinal());
    kernels.Scribble(pointer, (2 << 20) / 4, 7, 200'000'000);
    std::vector<double> steps;
    for (std::uint64_t bytes = step; bytes <= size; bytes += step) {
      const auto start = std::chrono::steady_clock::now();
      lease.Resize(bytes);
      steps.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
              .count());
    }
    std::uint64_t wrong = mapping.device_pointer() == pointer ? 0 : 1;
    wrong += mapping.size_bytes() == size ? 0 : 1;
    kernels.Fill(pointer, size / 4, 3);
    lease.Resize(step);
    lease.Resize(size);
    // What was there is there, and what came anew is zero.
    wrong += kernels.Wrong(pointer, step / 4, 3);
    wrong += kernels.NotZero(pointer + step, (size - step) / 4);
    std::sort(steps.begin(), steps.end());
    Say("wrong " + std::to_string(wrong) + ", " + std::to_string(steps[steps.size() / 2]) +
        " us a step");
  } else if (verb == "suspend") {
    const std::uint64_t size = std::stoull(argument(2));
    const auto seconds = [](auto work) {
      const auto start = std::chrono::steady_clock::now();
      work();
      return std::to_string(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    };
    Lease lease = client.Allocate({.size_bytes = size});
    Mapping mapping = lease.Map();
    const std::uint64_t pointer = mapping.device_pointer();
    GpuKernels kernels(mapping.device_ordinal());
    kernels.Fill(pointer, size / 4, 5);
    lease.PrepareSuspend();
    std::string suspend, resume, out, in;
    for (int round = 0; round < 2; ++round) {
      suspend = seconds([&] { lease.Suspend(); });
      resume = seconds([&] { lease.Resume({.wait = std::chrono::seconds(60)}); });
    }
    std::uint64_t wrong = mapping.device_pointer() == pointer ? 0 : 1;
    wrong += kernels.Wrong(pointer, size / 4, 5);
    lease.DropSuspendRoom();
    const auto cuda = driver::CudaDriver::Load({});
    if (!cuda.ok()) return 4;
    Lease host = client.Allocate({.size_bytes = size, .kind = MemoryKind::kHost});
    Mapping pinned = host.Map({.register_with_cuda = true});
    for (int round = 0; round < 2; ++round) {
      out = seconds([&] { (*cuda)->cuMemcpyDtoH(pinned.host_pointer(), pointer, size); });
      in = seconds([&] { (*cuda)->cuMemcpyHtoD(pointer, pinned.host_pointer(), size); });
    }
    wrong += kernels.Wrong(pointer, size / 4, 5);
    Say("wrong " + std::to_string(wrong) + ", suspend " + suspend + ", resume " + resume +
        ", copy " + out + " " + in);
  } else if (verb == "load") {
    LoadedLease loaded = client.LoadOrAttach(
        {.size_bytes = std::stoull(argument(3)), .name = argument(2), .persistent = true},
        std::chrono::seconds(60));
    const auto seed = static_cast<std::uint32_t>(std::stoul(argument(4)));
    Mapping mapping = loaded.lease.Map();
    GpuKernels kernels(mapping.device_ordinal());
    const std::uint64_t words = mapping.size_bytes() / 4;
    if (!loaded.fill) {
      Say("wrong " + std::to_string(kernels.Wrong(mapping.device_pointer(), words, seed)));
    } else if (argument(5) == "half") {
      kernels.Fill(mapping.device_pointer(), words / 2, seed + 1);
      Say("half");
      Stay();
    } else {
      const std::uint64_t left = kernels.NotZero(mapping.device_pointer(), words);
      kernels.Fill(mapping.device_pointer(), words, seed);
      loaded.lease.Seal("seed " + argument(4));
      Say(left == 0 ? "filled" : "not fresh");
    }
  } else if (verb == "check-many") {
    std::uint64_t wrong = 0;
    std::optional<GpuKernels> kernels;
    for (unsigned long i = 0; i < std::stoul(argument(3)); ++i) {
      Lease lease = client.Open(argument(2) + "-" + std::to_string(i), Access::kReadOnly);
      Mapping mapping = lease.Map();
      if (!kernels) kernels.emplace(mapping.device_ordinal());
      wrong += kernels->Wrong(mapping.device_pointer(), mapping.size_bytes() / 4,
                              static_cast<std::uint32_t>(std::stoul(argument(4)) + i));
    }
    Say("wrong " + std::to_string(wrong));
  } else if (verb == "check") {
    Lease lease = client.Open(argument(2), Access::kReadOnly);
    Mapping mapping = lease.Map();
    GpuKernels kernels(mapping.device_ordinal());
    Say("wrong " +
        std::to_string(kernels.Wrong(mapping.device_pointer(), mapping.size_bytes() / 4,
                                     static_cast<std::uint32_t>(std::stoul(argument(3))))));
  } else if (verb == "check-zero") {
    Lease lease =
        client.Allocate({.size_bytes = std::stoull(argument(2)), .wait = std::chrono::seconds(60)});
    Mapping mapping = lease.Map();
    GpuKernels kernels(mapping.device_ordinal());
    std::uint64_t wrong = 0;
    // Asked several times: what an earlier owner's kernels still wrote would show later, too.
    for (int i = 0; i < 5; ++i)
      wrong += kernels.NotZero(mapping.device_pointer(), mapping.size_bytes() / 4);
    Say("nonzero " + std::to_string(wrong));
  } else if (verb == "publish") {
    Lease lease = client.Allocate({.size_bytes = std::stoull(argument(3)),
                                   .name = argument(2),
                                   .mode = 0644,
                                   .ordered = true});
    Mapping mapping = lease.Map();
    GpuKernels kernels(mapping.device_ordinal());
    const std::uint64_t words = mapping.size_bytes() / 4;
    for (std::uint64_t i = 0; i < std::stoull(argument(5)); ++i) {
      kernels.Scribble(mapping.device_pointer(), words, 0xdeadbeef, 1'000'000'000);
    }
    kernels.FillLater(mapping.device_pointer(), words,
                      static_cast<std::uint32_t>(std::stoul(argument(4))));
    lease.Publish(nullptr);
    Say("published");
    Stay();
  } else if (verb == "await") {
    Lease lease = client.Open(argument(2), Access::kReadOnly);
    Mapping mapping = lease.Map();
    GpuKernels kernels(mapping.device_ordinal());
    Say("waits");
    if (argument(4) == "stream") {
      lease.WaitPublished(1, nullptr, std::chrono::seconds(60));
    } else {
      lease.WaitPublished(1, std::chrono::seconds(60));
    }
    Say("wrong " +
        std::to_string(kernels.Wrong(mapping.device_pointer(), mapping.size_bytes() / 4,
                                     static_cast<std::uint32_t>(std::stoul(argument(3))))));
  } else if (verb == "store") {
    Lease lease = client.Open(argument(2), Access::kReadOnly);
    Mapping mapping = lease.Map();
    GpuKernels kernels(mapping.device_ordinal());
    Say(kernels.TryFill(mapping.device_pointer(), mapping.size_bytes() / 4, 1));
    _exit(0);
  } else if (verb == "open") {
    try {
      Lease lease = client.Open(argument(2), Access::kReadOnly);
      Mapping mapping = lease.Map();
      Say("opened");
    } catch (const Exception& error) {
      Say(std::to_string(static_cast<int>(error.code())));
    }
  } else if (verb == "rounds") {
    for (int i = 0; i < std::stoi(argument(2)); ++i) {
      Lease lease = client.Allocate(
          {.size_bytes = std::stoull(argument(3)), .wait = std::chrono::seconds(10)});
      Mapping mapping = lease.Map();
    }
    Say("done");
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace gpulease::gpu_test

int main(int argc, char** argv) {
  try {
    return gpulease::gpu_test::Main(argc, argv);
  } catch (const gpulease::Exception& error) {
    std::printf("error %s\n", error.what());
    return 1;
  }
}
