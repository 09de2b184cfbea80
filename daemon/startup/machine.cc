// SPDX-License-Identifier: Apache-2.0
#include "daemon/startup/machine.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "daemon/memory/device_memory.h"
#include "daemon/memory/numa.h"
#include "daemon/startup/expectation.h"
#include "daemon/startup/options.h"
#include "driver/simulated/simulated.h"

namespace gpulease::startup {
namespace {

constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";
// What the variable above was when the daemon was started, while LimitDriver has changed it: ""
// when it was not set, else "=" and its value.
constexpr char kGivenVisible[] = "GPULEASE_GIVEN_VISIBLE_DEVICES";
constexpr std::size_t kProbe = 16 * kMiB;  // more than the usual limit of 8 MiB

Status FindGpus(const settings::Settings& settings, const std::string& directory,
                const Continuation& continuation, Machine& machine) {
  driver::DriverChoice choice;
  if (!settings.simulate.empty()) {
    const Result<simulated::NodeSpec> spec = simulated::ParseSpec(settings.simulate);
    if (!spec.ok()) return WithContext("simulate", spec.error());
    machine.simulated_directory = directory + "/simulated";
    const Result<simulated::Node> node =
        simulated::Node::Create(machine.simulated_directory, *spec);
    if (!node.ok()) return WithContext("simulate", node.error());
    choice.simulated_directory = machine.simulated_directory;
  }
  if (const char* const visible = std::getenv(kVisible);
      visible != nullptr && std::getenv(kGivenVisible) == nullptr) {
    machine.warnings.push_back("CUDA_VISIBLE_DEVICES=" + std::string(visible) +
                               " is set for the daemon: the other GPUs are not served");
  }
  // The driver cannot be loaded without opening a GPU.
  if (!continuation.retired.empty() && continuation.served.empty()) return {};
  Result<std::shared_ptr<const driver::CudaDriver>> cuda = driver::CudaDriver::Load(choice);
  if (!cuda.ok()) {
    machine.no_driver = std::move(cuda).error();
    if (!WantsDriver(settings)) {
      machine.warnings.push_back("no GPU is served, host memory alone: " +
                                 machine.no_driver->message);
    }
    return {};
  }
  machine.cuda = std::move(*cuda);
  Result<std::shared_ptr<const driver::NvmlDriver>> nvml = driver::NvmlDriver::Load(choice);
  if (nvml.ok()) {
    machine.nvml = std::move(*nvml);
    machine.driver_version = machine.nvml->driver_version();
  } else {
    machine.warnings.push_back(
        "what other programs use of the GPUs is not seen, and released memory counts as free at "
        "once: " +
        nvml.error().message);
  }
  Result<std::vector<driver::GpuDescription>> gpus =
      driver::DescribeGpus(*machine.cuda, machine.nvml.get());
  if (!gpus.ok()) {
    machine.no_driver = std::move(gpus).error();
    return {};
  }
  for (driver::GpuDescription& gpu : *gpus) {
    if (!gpu.unsupported.empty()) {
      machine.warnings.push_back(gpu.uuid + " is not leased from: " + gpu.unsupported);
      machine.unsupported.push_back(std::move(gpu));
      continue;
    }
    broker::Pool pool;
    pool.spec.kind = ledger::PoolKind::kDevice;
    pool.spec.name = gpu.uuid;
    pool.spec.total = gpu.total;
    pool.spec.headroom = settings.device_headroom;
    pool.spec.granularity = gpu.granularity;
    pool.spec.largest_chunk = LargestChunk(settings, gpu.granularity);
    pool.spec.confirms_releases = machine.nvml != nullptr;
    if (gpu.numa_node >= 0) pool.spec.numa_node = gpu.numa_node;
    pool.gpu = std::move(gpu);
    machine.pools.push_back(std::move(pool));
  }
  if (!machine.pools.empty() && !machine.cuda->simulated()) {
    const broker::Pool& first = machine.pools.front();
    Result<UniqueFd> anchor = memory::DeviceMemory(machine.cuda, first.gpu.ordinal, first.gpu.uuid)
                                  .CreateChunk(first.spec.granularity);
    if (anchor.ok()) {
      machine.anchor = std::move(*anchor);
    } else {
      machine.warnings.push_back("first use of the memory will be slower: " +
                                 anchor.error().message);
    }
  }
  return {};
}

// Locking may be limited for who is not root, or has not the right in its container.
void CheckLocking(Machine& machine) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_MEMLOCK, &limit);
  void* const probe =
      mmap(nullptr, kProbe, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) return;
  const bool locks = mlock(probe, kProbe) == 0;
  munmap(probe, kProbe);
  if (locks || limit.rlim_cur == RLIM_INFINITY) return;
  machine.warnings.push_back(
      "the daemon may lock " + FormatBytes(limit.rlim_cur) +
      " of memory: pinned host memory beyond is " +
      (memory::HasSwap() ? "refused" : "left unlocked, as the machine has no swap") +
      "; set LimitMEMLOCK=infinity");
}

void FindHostMemory(const settings::Settings& settings, Machine& machine) {
  CheckLocking(machine);
  const Bytes page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  for (const memory::NumaNode& node : memory::NumaNodes()) {
    broker::Pool pool;
    pool.spec.kind = ledger::PoolKind::kHost;
    pool.spec.name = "numa" + std::to_string(node.number);
    pool.spec.total = node.total / 100 * settings.host_memory_percent / page * page;
    pool.spec.granularity = page;
    pool.spec.largest_chunk = settings.largest_chunk;
    pool.spec.numa_node = node.number;
    pool.numa_node = node.number;
    machine.pools.push_back(std::move(pool));
  }
}

}  // namespace

std::vector<std::string> Machine::Uuids() const {
  std::vector<std::string> uuids;
  for (const broker::Pool& pool : pools) {
    if (pool.spec.kind == ledger::PoolKind::kDevice) uuids.push_back(pool.gpu.uuid);
  }
  for (const driver::GpuDescription& gpu : unsupported) uuids.push_back(gpu.uuid);
  return uuids;
}

void LimitDriver(const Continuation& continuation) {
  if (const char* const given = std::getenv(kGivenVisible)) {
    if (*given == '\0') {
      unsetenv(kVisible);
    } else {
      setenv(kVisible, given + 1, 1);
    }
    unsetenv(kGivenVisible);
  }
  if (continuation.retired.empty()) return;
  const char* const visible = std::getenv(kVisible);
  setenv(kGivenVisible, visible == nullptr ? "" : ("=" + std::string(visible)).c_str(), 1);
  std::string served;
  for (const std::string& uuid : continuation.served) served += (served.empty() ? "" : ",") + uuid;
  setenv(kVisible, served.c_str(), 1);
}

Result<Machine> FindMachine(const settings::Settings& settings, const std::string& directory,
                            const Continuation& continuation) {
  Machine machine;
  machine.directory = directory;
  GPULEASE_RETURN_IF_ERROR(FindGpus(settings, directory, continuation, machine));
  FindHostMemory(settings, machine);
  return machine;
}

}  // namespace gpulease::startup
