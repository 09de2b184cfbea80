// SPDX-License-Identifier: Apache-2.0
//
// Death: a process that holds leases is killed; how long until what it held can be leased again.
// Two clocks: from the signal, which includes the time that kernel and driver need to take the
// process apart, and from its end, which is the broker's own. And two ends: the broker shows the
// bytes as free; somebody who waited for them has them, which on a full GPU includes that the
// driver clears them.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <stdexcept>

#include "base/bytes.h"
#include "client/bench/bench.h"
#include "client/playground/gpu.h"
#include "client/playground/interruption.h"

namespace gpulease::bench {
namespace {

const std::string kSection = "death";
constexpr auto kLongest = std::chrono::seconds(20);

struct Estate {
  int leases;
  std::uint64_t each;
};

// One kill. The memory is asked for before, and the rest of the GPU is leased away, so that the
// request fits when the dead process's memory is back, up to a 16th of it: other programs' use of
// the GPU varies a little.
void KillOne(Bench& bench, Client& client, const Estate& estate, Samples& from_signal,
             Samples& until_end, Samples& from_end) {
  const std::uint64_t held = estate.each * static_cast<std::uint64_t>(estate.leases);
  playground::Worker victim = StartWorker(bench, "victim");
  victim.Ask("take " + std::to_string(estate.leases) + " " + std::to_string(estate.each));
  const std::uint64_t spare = bench.node.simulated ? 256 * kMiB : 3 * kGiB;
  const std::uint64_t free = FreeBytes(client, bench);
  Lease rest;
  if (free > spare + 2 * kMiB) {
    rest = client.Allocate(DeviceMemory(bench, (free - spare) / (2 * kMiB) * (2 * kMiB)));
  }
  AllocateOptions wanted = DeviceMemory(bench, FreeBytes(client, bench) + held - held / 16);
  wanted.wait = kLongest;
  PendingLease pending = client.Request(wanted);
  if (pending.ready()) throw std::runtime_error("the request did not have to wait");

  const Stopwatch watch;
  victim.process().Signal(SIGKILL);
  if (!playground::WaitReadable(victim.process().pidfd(), kLongest)) {
    throw std::runtime_error("the killed process does not end");
  }
  const double ended = watch.micros();
  std::optional<Lease> heir = pending.Wait(kLongest);
  const double leased = watch.micros();
  if (!heir) throw std::runtime_error("the memory did not come back");
  from_signal.Add(leased / 1000);
  until_end.Add(ended / 1000);
  from_end.Add((leased - ended) / 1000);
}

// One kill on a GPU with room: until the broker shows as much free as before the victim came, but
// for what other programs' use varies by.
void KillOneWatched(Bench& bench, Client& client, const Estate& estate, Samples& until_shown) {
  const std::uint64_t variation = 64 * kMiB;
  const std::uint64_t before = FreeBytes(client, bench);
  playground::Worker victim = StartWorker(bench, "victim");
  victim.Ask("take " + std::to_string(estate.leases) + " " + std::to_string(estate.each));
  victim.process().Signal(SIGKILL);
  if (!playground::WaitReadable(victim.process().pidfd(), kLongest)) {
    throw std::runtime_error("the killed process does not end");
  }
  const Stopwatch watch;
  while (FreeBytes(client, bench) + variation < before) {
    if (watch.micros() > 20e6) throw std::runtime_error("the memory did not come back");
  }
  until_shown.Add(watch.micros() / 1000);
}

}  // namespace

void MeasureDeath(Bench& bench) {
  ClientOptions options = OptionsOf(bench.runtime_dir, "bench heir");
  options.use_cuda = false;
  Client client(options);
  const int times = bench.quick ? 2 : 7;
  for (const Estate estate :
       {Estate{1, 2 * kGiB}, Estate{100, 20 * kMiB}, Estate{1000, 2 * kMiB}}) {
    Samples from_signal;
    Samples until_end;
    Samples from_end;
    Samples until_shown;
    for (int i = 0; i < times; ++i) {
      KillOne(bench, client, estate, from_signal, until_end, from_end);
      KillOneWatched(bench, client, estate, until_shown);
    }
    const std::string what = std::to_string(estate.leases) +
                             (estate.leases == 1 ? " lease" : " leases") + " of " +
                             FormatBytes(estate.each);
    bench.report.Add(kSection, what + ": its end until shown as free", 0, Unit::kMillis,
                     until_shown);
    bench.report.Add(kSection, what + ": SIGKILL until leased to one who waited", 0, Unit::kMillis,
                     from_signal);
    bench.report.Add(kSection, what + ": SIGKILL until the process has ended", 0, Unit::kMillis,
                     until_end);
    bench.report.Add(kSection, what + ": its end until leased to one who waited", 0, Unit::kMillis,
                     from_end);
  }
}

int RunVictim(const std::string& runtime_dir, const std::string& simulated_directory,
              const std::string& gpu_uuid) {
  // A mapped lease keeps a descriptor, and 1,024 are the usual soft limit.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  playground::Leader leader;
  std::optional<playground::Gpu> gpu;
  std::optional<Client> client;
  std::vector<Lease> leases;
  std::vector<Mapping> mappings;
  return leader.Serve([&](const std::vector<std::string>& words) -> std::string {
    gpu.emplace(simulated_directory, gpu_uuid);
    client.emplace(OptionsOf(runtime_dir, "bench victim"));
    AllocateOptions options;
    options.size_bytes = std::stoull(words.at(2));
    options.gpu_uuid = gpu_uuid;
    options.wait = std::chrono::seconds(10);
    for (int i = 0; i < std::stoi(words.at(1)); ++i) {
      leases.push_back(client->Allocate(options));
      mappings.push_back(leases.back().Map());
    }
    return "ok";
  });
}

}  // namespace gpulease::bench
