// SPDX-License-Identifier: Apache-2.0
//
// Bell: the word of a lease's first page on which processes sleep until something has changed: a
// process (Ring) or the daemon's death notice. It says that they should look, and how many deaths
// there were; everything else lies beside it.
//
// It is a futex of shared memory: no lock, and nobody who dies leaves it in a bad state. Whoever
// may write the page can ring it; a false ring costs a look.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpulease {

// What a page that processes share begins to be used from: there is no padding on any side.
inline constexpr std::size_t kOrderPageBytes = 4096;

class Bell {
 public:
  // Of a page of at least kOrderPageBytes, which may be mapped for reading alone.
  explicit Bell(std::byte* page)
      : word_(reinterpret_cast<std::atomic<std::uint32_t>*>(page + kOffset)) {}

  std::uint32_t Read() const { return word_->load(std::memory_order_seq_cst); }
  // How often the daemon noticed a death, in a value that was read; wraps.
  static std::uint32_t Deaths(std::uint32_t value) { return value & (kRing - 1); }
  // Wakes all who sleep. Needs a page that is mapped for writing.
  void Ring();
  // Sleeps until it rings, unless it did since `seen` was read. May wake early.
  void Sleep(std::uint32_t seen, std::chrono::steady_clock::duration most) const;

 private:
  static constexpr std::size_t kOffset = 4092;  // AllocationSpec.death_notice
  // The daemon adds 1; processes leave those bits alone.
  static constexpr std::uint32_t kRing = 1u << 16;

  std::atomic<std::uint32_t>* word_;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace gpulease
