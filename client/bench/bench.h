// SPDX-License-Identifier: Apache-2.0
//
// Bench: what every section measures with, and the sections. Each section runs what it measures and
// what that is held against in turns, in the same loop, so that a busy machine is busy for both.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "client/bench/report.h"
#include "client/playground/worker.h"
#include "gpulease/gpulease.h"

namespace gpulease::bench {

struct Bench {
  std::string runtime_dir;
  std::string simulated_directory;  // empty: real GPUs
  std::string grpc_socket;          // where the gRPC floor's server may listen
  NodeStatus node;
  GpuStatus gpu;  // the one that is measured
  bool quick = false;
  Report report;
};

// How long one loop runs: until it has `rounds` or `time` is over, after `warm_up` rounds that do
// not count.
class Rounds {
 public:
  struct Limits {
    int warm_up;
    int rounds;
    std::chrono::milliseconds time;
  };
  explicit Rounds(const Limits& limits) : limits_(limits) {}
  // Whether there is another round. Throws playground::Interrupted.
  bool Next();
  bool counts() const { return done_ > limits_.warm_up; }
  int number() const { return done_; }

 private:
  const Limits limits_;
  int done_ = 0;
  std::chrono::steady_clock::time_point start_;  // of the first that counts
};

ClientOptions OptionsOf(const std::string& runtime_dir, const std::string& program);
// A worker of this program in that role, which knows the daemon and the GPU.
playground::Worker StartWorker(const Bench& bench, const std::string& role);
// 2 MiB and more on the measured GPU; waits for what is just being released.
AllocateOptions DeviceMemory(const Bench& bench, std::uint64_t size);
// Free bytes of the measured GPU.
std::uint64_t FreeBytes(Client& client, const Bench& bench);

// The sections, by what --filter knows. Each throws std::exception when it cannot go on.
void MeasureLatency(Bench& bench);    // "latency": a call's way to a usable pointer
void MeasureElastic(Bench& bench);    // "elastic": a step of a lease that grows in place
void MeasureGrants(Bench& bench);     // "grants": how many a second, with many clients
void MeasureDeath(Bench& bench);      // "death": from SIGKILL until the memory can be leased
void MeasureBarrier(Bench& bench);    // "barrier": rounds of eight processes, and one that dies
void MeasureBandwidth(Bench& bench);  // "bandwidth": copies in leased and in plain memory

// The roles of workers in those sections. The exit code.
int RunSwarm(const std::string& runtime_dir, const std::string& gpu_uuid);
int RunVictim(const std::string& runtime_dir, const std::string& simulated_directory,
              const std::string& gpu_uuid);
int RunParty(const std::string& runtime_dir);

}  // namespace gpulease::bench
