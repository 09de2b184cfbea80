// SPDX-License-Identifier: Apache-2.0
//
// Barrier: rounds of eight processes, against the same rounds over a bare word that all of them
// spin on: that one needs a processor for each, and hangs when one dies. And one of eight is
// killed: how long after its end the others know.
#include <gpulease/barrier.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>

#include "client/bench/bench.h"
#include "client/playground/interruption.h"

namespace gpulease::bench {
namespace {

const std::string kSection = "barrier";
constexpr unsigned kParties = 8;
constexpr int kWarmUp = 20;  // of each block: until all are there
constexpr auto kLongest = std::chrono::seconds(60);

// All zeros is one that nobody has used.
struct BareBarrier {
  alignas(64) std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<std::uint32_t> round;

  void Wait() {
    const std::uint32_t mine = round.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == kParties) {
      arrived.store(0, std::memory_order_relaxed);
      round.store(mine + 1, std::memory_order_release);
      return;
    }
    while (round.load(std::memory_order_acquire) == mine) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
};

ClientOptions Plain(const std::string& runtime_dir, const std::string& program) {
  ClientOptions options = OptionsOf(runtime_dir, program);
  options.use_cuda = false;
  return options;
}

// Where the bare words lie, as every process maps them.
struct BareMemory {
  BareMemory(Lease taken) : lease(std::move(taken)), mapping(lease.Map()) {}
  BareBarrier& barrier() { return *static_cast<BareBarrier*>(mapping.host_pointer()); }
  Lease lease;
  Mapping mapping;
};

struct Party {
  Party(const std::string& runtime_dir, const std::string& program)
      : client(Plain(runtime_dir, program)) {}
  void Round(bool bare) {
    bare ? memory->barrier().Wait() : static_cast<void>(barrier.Wait(kLongest));
  }
  Client client;
  std::unique_ptr<BareMemory> memory;
  Barrier barrier;
};

void MeasureRounds(Bench& bench) {
  Party me(bench.runtime_dir, "bench barrier");
  me.memory = std::make_unique<BareMemory>(me.client.Allocate(
      {.size_bytes = 4096, .kind = MemoryKind::kHost, .name = "bench-bare-barrier"}));
  me.barrier = Barrier(me.client, {.name = "bench-barrier", .participants = kParties});
  std::vector<playground::Worker> others;
  for (unsigned i = 1; i < kParties; ++i) {
    others.push_back(StartWorker(bench, "party"));
    others.back().Ask("join bench-barrier bench-bare-barrier");
  }
  // Where processes share processors, a round takes as long as the kernel lets the others spin.
  const bool crowded = std::thread::hardware_concurrency() < kParties;
  const int rounds = crowded ? 30 : bench.quick ? 2000 : 20000;
  const int turns = crowded ? 2 : 5;
  Samples bare, ours;
  for (int turn = 0; turn < turns; ++turn) {
    for (const bool is_bare : {true, false}) {
      playground::ThrowIfInterrupted();
      const std::string order =
          std::string("rounds ") + (is_bare ? "bare " : "ours ") + std::to_string(rounds + kWarmUp);
      for (playground::Worker& other : others) other.Send(order);
      for (int i = 0; i < kWarmUp; ++i) me.Round(is_bare);
      Stopwatch watch;
      for (int i = 0; i < rounds; ++i) {
        me.Round(is_bare);
        (is_bare ? bare : ours).Add(watch.Lap());
      }
      for (playground::Worker& other : others) other.Receive();
    }
  }
  bench.report.Add(kSection, "round of 8 processes", 0, Unit::kMicros, ours);
  bench.report.Add(kSection, "the same over a bare word that all spin on", 0, Unit::kMicros, bare);
  bench.report.AddRatio(kSection, "ratio: round / over a bare word", 0, ours.p50(), bare.p50());
}

void KillOne(Bench& bench, Samples& known) {
  std::vector<playground::Worker> parties;
  for (unsigned i = 0; i < kParties; ++i) {
    parties.push_back(StartWorker(bench, "party"));
    parties.back().Ask("join bench-death");
  }
  for (unsigned i = 1; i < kParties; ++i) parties[i].Send("wait");
  // Long enough for all to sleep.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  parties[0].process().Signal(SIGKILL);
  if (!playground::WaitReadable(parties[0].process().pidfd(), kLongest))
    throw std::runtime_error("the killed process does not end");
  const Stopwatch watch;
  for (unsigned i = 1; i < kParties; ++i) {
    if (parties[i].Receive().text != "broken")
      throw std::runtime_error("a round with a dead process");
  }
  known.Add(watch.micros() / 1000);
}

}  // namespace

void MeasureBarrier(Bench& bench) {
  MeasureRounds(bench);
  Samples known;
  const int times = bench.quick ? 3 : 15;
  for (int i = 0; i < times; ++i) KillOne(bench, known);
  bench.report.Add(kSection, "a participant's end until all 7 others know", 0, Unit::kMillis,
                   known);
}

int RunParty(const std::string& runtime_dir) {
  playground::Leader leader;
  Party me(runtime_dir, "bench barrier party");
  return leader.Serve([&](const std::vector<std::string>& words) -> std::string {
    if (words.at(0) == "join") {
      me.barrier = Barrier(me.client, {.name = words.at(1), .participants = kParties});
      if (words.size() > 2) me.memory = std::make_unique<BareMemory>(me.client.Open(words.at(2)));
      return "ok";
    }
    if (words.at(0) == "wait") {
      try {
        me.barrier.Wait(kLongest);
        return "ended";
      } catch (const Exception& error) {
        return error.reason() == ErrorReason::kPeerGone ? "broken" : error.what();
      }
    }
    for (int i = 0; i < std::stoi(words.at(2)); ++i) me.Round(words.at(1) == "bare");
    return "ok";
  });
}

}  // namespace gpulease::bench
