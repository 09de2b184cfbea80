// SPDX-License-Identifier: Apache-2.0
//
// pattern_client COUNT: a program of a user, built from the installed libgpulease-dev alone.
// pattern_client --pinned BYTES: takes one pinned lease, and says "granted" or why not.
//
// The first takes COUNT leases, half of them on a simulated GPU and half pinned, fills each with a
// pattern of its own, and says "ready". All the while a thread of it makes calls: asks for the
// node's state, takes a lease and gives it back. Each line on its standard input has it check every
// byte and every lease; it answers "ok: ..." with the longest that those calls have taken since the
// last line, in milliseconds, or with what is wrong. It ends with its input.
#include <gpulease/gpulease.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint64_t kBytes = 64 << 10;

// One lease's memory as this program sees it. A simulated GPU's chunk is a file that can be mapped.
class Memory {
 public:
  Memory(gpulease::Client& client, bool device, std::uint64_t seed) : seed_(seed) {
    lease_ = client.Allocate(
        {.size_bytes = kBytes,
         .kind = device ? gpulease::MemoryKind::kDevice : gpulease::MemoryKind::kHost,
         .name = "pattern-" + std::to_string(getpid()) + "-" + std::to_string(seed)});
    mapping_ = lease_.Map();
    if (device) {
      const std::vector<int> chunks = lease_.DuplicateDescriptors();
      void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, chunks.at(0), 0);
      for (const int chunk : chunks) close(chunk);
      if (at == MAP_FAILED) throw std::runtime_error("mmap of a simulated chunk");
      words_ = static_cast<std::uint64_t*>(at);
    } else {
      words_ = static_cast<std::uint64_t*>(mapping_.host_pointer());
    }
    for (std::uint64_t i = 0; i < kBytes / 8; ++i) words_[i] = Word(i);
  }

  std::uint64_t id() const { return lease_.id(); }
  bool Holds() const {
    for (std::uint64_t i = 0; i < kBytes / 8; ++i) {
      if (words_[i] != Word(i)) return false;
    }
    return true;
  }

 private:
  std::uint64_t Word(std::uint64_t i) const { return (seed_ << 32 | i) * 0x9e3779b97f4a7c15; }

  const std::uint64_t seed_;
  gpulease::Lease lease_;
  gpulease::Mapping mapping_;
  std::uint64_t* words_ = nullptr;
};

// What is wrong, or nothing.
std::string Check(gpulease::Client& client, const std::vector<std::unique_ptr<Memory>>& memories) {
  std::set<std::uint64_t> leased;
  for (const gpulease::LeaseStatus& lease : client.Leases()) {
    if (lease.state == gpulease::LeaseState::kLeased) leased.insert(lease.id);
  }
  for (const auto& memory : memories) {
    if (!memory->Holds()) return "lease " + std::to_string(memory->id()) + " has other bytes";
    if (!leased.contains(memory->id()))
      return "lease " + std::to_string(memory->id()) + " is not listed as leased";
  }
  // Not only what was there goes on: something new is leased too.
  client.Allocate({.size_bytes = kBytes}).Release();
  return {};
}

int Run(int count) {
  gpulease::Client client;
  std::vector<std::unique_ptr<Memory>> memories;
  for (int i = 0; i < count; ++i)
    memories.push_back(std::make_unique<Memory>(client, i % 2 == 0, i + 1));

  std::atomic<bool> over = false;
  std::atomic<std::int64_t> longest_ms = 0;
  std::atomic<int> failed = 0;
  std::thread caller([&] {
    while (!over) {
      const auto begun = steady_clock::now();
      try {
        client.Node();
        client.Allocate({.size_bytes = kBytes, .wait = std::chrono::seconds(1)}).Release();
      } catch (const gpulease::Exception& error) {
        std::cerr << "call: " << error.what() << "\n";
        ++failed;
      }
      const auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - begun);
      if (took.count() > longest_ms) longest_ms = took.count();
    }
  });

  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::string wrong;
    try {
      wrong = Check(client, memories);
    } catch (const gpulease::Exception& error) {
      wrong = error.what();
    }
    if (wrong.empty() && failed.exchange(0) != 0) wrong = "a call failed";
    if (!wrong.empty()) {
      std::cout << "wrong: " << wrong << std::endl;
    } else {
      std::cout << "ok: " << memories.size() << " leases, longest call " << longest_ms.exchange(0)
                << " ms" << std::endl;
    }
  }
  over = true;
  caller.join();
  return 0;
}

int RunPinned(std::uint64_t bytes) try {
  gpulease::Client client;
  client.Allocate({.size_bytes = bytes, .kind = gpulease::MemoryKind::kHost}).Map();
  std::cout << "granted" << std::endl;
  return 0;
} catch (const gpulease::Exception& error) {
  std::cout << "refused: " << error.what() << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc > 2 && argv[1] == std::string("--pinned")) return RunPinned(std::stoull(argv[2]));
  return Run(argc > 1 ? std::stoi(argv[1]) : 10);
} catch (const std::exception& error) {
  std::cerr << "pattern_client: " << error.what() << "\n";
  return 1;
}
