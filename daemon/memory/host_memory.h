// SPDX-License-Identifier: Apache-2.0
//
// HostMemory: makes chunks of pinned host memory. A chunk is a memfd: every page is there and
// locked before anybody gets it, bound to one NUMA node, mode 0600, sealed against growing,
// shrinking and further seals.
// Where the daemon may not lock that much, a machine with swap refuses, and one without keeps the
// pages in place all the same.
//
// A holder gets a descriptor of his own opening, read-only or not; so the kernel knows whether
// anybody but the daemon still has the memory, open or mapped, in whatever process: a write lease
// (F_SETLEASE) on the daemon's own descriptor is granted only when not.
#pragma once

#include <cstdint>
#include <functional>

#include "base/bytes.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/ledger/ledger.h"

namespace gpulease::memory {

// Where the word of AllocationSpec.death_notice lies in a lease.
inline constexpr Bytes kNoticeOffset = 4092;

// One chunk and the mapping by which the daemon keeps it locked.
class HostChunk {
 public:
  HostChunk() = default;
  HostChunk(UniqueFd fd, void* address, Bytes size)
      : fd_(std::move(fd)), address_(address), size_(size) {}
  HostChunk(HostChunk&& other) noexcept
      : fd_(std::move(other.fd_)),
        address_(std::exchange(other.address_, nullptr)),
        size_(other.size_) {}
  HostChunk& operator=(HostChunk&&) = delete;
  ~HostChunk();

  // A chunk that another life of the daemon made, as `fd`. Not locked yet.
  // Errors: kDataLoss when it is not of that size; ErrnoError.
  static Result<HostChunk> Adopt(UniqueFd fd, Bytes size);
  // Locks its pages in memory again. Takes about a second for 16 GiB.
  Status Lock() const;

  Bytes size() const { return size_; }
  int descriptor() const { return fd_.get(); }
  // Errors: ErrnoError; at the descriptor limit kResourceExhausted/kDescriptorLimit.
  Result<UniqueFd> OpenFor(ledger::Access access) const;
  // Whether anybody but the daemon has it open or mapped.
  bool InUse() const;
  // Tells who waits on the chunk's memory that somebody who held it is gone: adds 1 to the 32-bit
  // word at kNoticeOffset and wakes who waits on it. For small pages. What the memory holds is the
  // holders' and means nothing here.
  // Errors: ErrnoError when the page, which a holder gave back to the kernel, cannot be had again.
  Status NoticeDeath() const;

 private:
  UniqueFd fd_;
  void* address_ = nullptr;
  Bytes size_ = 0;
};

struct HostRequest {
  Bytes size = 0;
  std::int32_t node = 0;
  bool bind = false;                                      // there is more than one node
  ledger::PageSize page_size = ledger::PageSize::kSmall;  // not kAuto
  unsigned threads = 1;
  // Asked now and then while populating: false gives up.
  std::function<bool()> wanted = [] { return true; };
};

// Errors, each of which leaves nothing behind:
//   kResourceExhausted/kHostMemoryShort   not that much memory (or huge pages, or locked-memory
//   limit) is to be had;
//                                         the message has the numbers and what to do.
//   kCancelled                            `wanted` said no.
//   ErrnoError                            everything else.
Result<HostChunk> CreateHostChunk(const HostRequest& request);

// The page size that kAuto becomes for `size` bytes on the node.
ledger::PageSize ChoosePageSize(ledger::PageSize asked, Bytes size, std::int32_t node);

}  // namespace gpulease::memory
