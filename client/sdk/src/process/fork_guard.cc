// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/process/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <unordered_set>
#include <utility>

namespace gpulease {
namespace {

// Never destroyed: objects of static storage may outlive any order of destructors.
struct Registry {
  std::mutex mutex;
  std::unordered_set<int> descriptors;  // under mutex
  std::atomic<std::uint64_t> generation{1};
};

void Prepare();
void InParent();
void InChild();

Registry& TheRegistry() {
  static Registry* const registry = [] {
    auto* made = new Registry;
    pthread_atfork(Prepare, InParent, InChild);
    return made;
  }();
  return *registry;
}

void Prepare() { TheRegistry().mutex.lock(); }
void InParent() { TheRegistry().mutex.unlock(); }

void InChild() {
  Registry& registry = TheRegistry();
  for (int fd : registry.descriptors) close(fd);
  registry.descriptors.clear();
  registry.generation.fetch_add(1);
  registry.mutex.unlock();
}

}  // namespace

std::uint64_t ForkGeneration() { return TheRegistry().generation.load(std::memory_order_relaxed); }

ForkHold::ForkHold() { TheRegistry().mutex.lock(); }
ForkHold::~ForkHold() { TheRegistry().mutex.unlock(); }

LocalFd::LocalFd(UniqueFd fd, const ForkHold&) : fd_(fd.Release()), generation_(ForkGeneration()) {
  if (fd_ >= 0) TheRegistry().descriptors.insert(fd_);
}

LocalFd::LocalFd(LocalFd&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}

LocalFd& LocalFd::operator=(LocalFd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
    generation_ = other.generation_;
  }
  return *this;
}

void LocalFd::Reset() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0 || generation_ != ForkGeneration()) return;
  {
    std::lock_guard lock(TheRegistry().mutex);
    TheRegistry().descriptors.erase(fd);
  }
  // A fork in between closes nothing twice: the child only has one more descriptor for a moment.
  UniqueFd closing(fd);
}

}  // namespace gpulease
