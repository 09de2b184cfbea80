// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/host_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/memory/numa.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

namespace gpulease::memory {
namespace {

constexpr Bytes kHugePage = 2 * kMiB;
// Populated between two questions whether it is still wanted; 16 MiB take about 4 ms.
constexpr Bytes kSlice = 16 * kMiB;
// Left to the machine whatever is asked, and half of it whatever others take meanwhile: the kernel
// does not refuse the page that is too many, it kills for it.
constexpr Bytes kMargin = 64 * kMiB;

std::string PathOf(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

Error Short(std::string message, Bytes requested, Bytes available) {
  Error error = MakeError(Code::kResourceExhausted, Reason::kHostMemoryShort, std::move(message));
  error.requested_bytes = requested;
  error.available_bytes = available;
  return error;
}

// Unmaps on the way out unless released.
struct Mapped {
  void* address;
  Bytes size;
  ~Mapped() {
    if (address != nullptr) munmap(address, size);
  }
};

Status Bind(void* address, Bytes size, std::int32_t node) {
  constexpr unsigned kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(static_cast<std::size_t>(node) / kBits + 1);
  mask[static_cast<std::size_t>(node) / kBits] = 1ul << (static_cast<unsigned>(node) % kBits);
  if (syscall(SYS_mbind, address, size, MPOL_BIND, mask.data(), mask.size() * kBits + 1, 0u) != 0) {
    return ErrnoError("mbind to NUMA node " + std::to_string(node), errno);
  }
  return {};
}

int PopulateSlice(std::byte* address, Bytes size) {
  for (;;) {
    if (madvise(address, size, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
}

// 0, an errno, or ECANCELED.
int Populate(std::byte* address, const HostRequest& request) {
  const bool from_pool = request.page_size == ledger::PageSize::kHuge;
  std::atomic<Bytes> next = 0;
  std::atomic<int> failure = 0;
  // One of the threads looks what others have left; a look takes up to a tenth of a slice's time.
  const auto work = [&](bool looks) {
    while (failure == 0) {
      const Bytes offset = next.fetch_add(kSlice);
      if (offset >= request.size) return;
      const Bytes size = std::min(kSlice, request.size - offset);
      const bool left =
          !looks || offset == 0 || AvailableOnNode(request.node) >= kMargin / 2 + size;
      int error = left ? PopulateSlice(address + offset, size) : ENOMEM;
      if (error == 0 && offset + size < request.size && !request.wanted()) error = ECANCELED;
      if (error != 0) failure = error;
    }
  };
  const Bytes slices = (request.size + kSlice - 1) / kSlice;
  std::vector<std::thread> others;
  for (Bytes i = 1; i < std::min<Bytes>(request.threads, slices); ++i)
    others.emplace_back(work, false);
  work(!from_pool);
  for (std::thread& other : others) other.join();
  return failure;
}

Error LockError(Bytes size, int error) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return Short("mlock of " + FormatBytes(size) + ": the daemon may lock " +
                   FormatBytes(limit.rlim_cur) + " (" + ErrnoError("mlock", error).message +
                   "); raise LimitMEMLOCK= of its unit",
               size, limit.rlim_cur);
}

}  // namespace

HostChunk::~HostChunk() {
  if (address_ != nullptr) munmap(address_, size_);
}

Result<HostChunk> HostChunk::Adopt(UniqueFd fd, Bytes size) {
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) return ErrnoError("fstat of a memfd", errno);
  if (!S_ISREG(status.st_mode) || static_cast<Bytes>(status.st_size) != size) {
    return MakeError(Code::kDataLoss, Reason::kUnspecified,
                     "a chunk of host memory is not of " + FormatBytes(size));
  }
  void* const address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return ErrnoError("mmap of a memfd", errno);
  madvise(address, size, MADV_DONTFORK);
  return HostChunk(std::move(fd), address, size);
}

Status HostChunk::Lock() const {
  if (mlock(address_, size_) == 0) return {};
  const int error = errno;
  return HasSwap() ? Status(LockError(size_, error)) : Status();
}

Result<UniqueFd> HostChunk::OpenFor(ledger::Access access) const {
  const int flags = access == ledger::Access::kReadOnly ? O_RDONLY : O_RDWR;
  UniqueFd opened(open(PathOf(fd_.get()).c_str(), flags | O_CLOEXEC));
  if (!opened) return ErrnoError("open a memfd for its holder", errno);
  return opened;
}

bool HostChunk::InUse() const {
  if (fcntl(fd_.get(), F_SETLEASE, F_WRLCK) != 0) return true;
  fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
  return false;
}

Status HostChunk::NoticeDeath() const {
  std::byte* const page = static_cast<std::byte*>(address_);
  // A hole that a holder punched is filled here, where running out of memory is an error and no
  // SIGBUS.
  if (madvise(page, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), MADV_POPULATE_WRITE) != 0)
    return ErrnoError("MADV_POPULATE_WRITE for a death notice", errno);
  auto* const word = reinterpret_cast<std::uint32_t*>(page + kNoticeOffset);
  std::atomic_ref<std::uint32_t>(*word).fetch_add(1);
  syscall(SYS_futex, word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
  return {};
}

ledger::PageSize ChoosePageSize(ledger::PageSize asked, Bytes size, std::int32_t node) {
  if (asked != ledger::PageSize::kAuto) return asked;
  return size % kHugePage == 0 && FreeHugePages(node) >= size ? ledger::PageSize::kHuge
                                                              : ledger::PageSize::kSmall;
}

Result<HostChunk> CreateHostChunk(const HostRequest& request) {
  const bool huge = request.page_size == ledger::PageSize::kHuge;
  const std::string node = "NUMA node " + std::to_string(request.node);
  if (huge) {
    const Bytes free = FreeHugePages(request.node);
    if (request.size % kHugePage != 0) {
      return MakeError(Code::kInvalidArgument, Reason::kBadField,
                       "page_size HUGE needs a size that is a multiple of 2.0 MiB");
    }
    if (free < request.size) {
      return Short(
          node + ": asked " + FormatBytes(request.size) + " of huge pages, " + FormatBytes(free) +
              " free in the machine's pool; raise vm.nr_hugepages or ask for page_size AUTO",
          request.size, free);
    }
  } else {
    const Bytes available = AvailableOnNode(request.node);
    if (available < kMargin || available - kMargin < request.size) {
      return Short(node + ": asked " + FormatBytes(request.size) + " of pinned memory, " +
                       FormatBytes(available) + " available here, of which " +
                       FormatBytes(kMargin) + " stay free; release some or ask for less",
                   request.size, available);
    }
  }
  UniqueFd made(memfd_create(
      "gpulease", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0)));
  if (!made) return ErrnoError("memfd_create", errno);
  if (fchmod(made.get(), 0600) != 0) return ErrnoError("fchmod of a memfd", errno);
  if (ftruncate(made.get(), static_cast<off_t>(request.size)) != 0)
    return ErrnoError("ftruncate of a memfd", errno);
  // memfd_create's own opening does not count as a writer in the kernel, and a write lease on it is
  // never granted; on another opening of the same file it is.
  UniqueFd fd(open(PathOf(made.get()).c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return ErrnoError("open of a memfd", errno);
  made.Reset();

  void* const address =
      mmap(nullptr, request.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return ErrnoError("mmap of a memfd", errno);
  Mapped mapped{address, request.size};
  // A child of the daemon has no business with it; huge pages of the kernel's own making are
  // welcome.
  madvise(address, request.size, MADV_DONTFORK);
  if (!huge) madvise(address, request.size, MADV_HUGEPAGE);
  if (request.bind) GPULEASE_RETURN_IF_ERROR(Bind(address, request.size, request.node));
  if (const int error = Populate(static_cast<std::byte*>(address), request); error != 0) {
    if (error == ECANCELED) {
      return MakeError(Code::kCancelled, Reason::kUnspecified,
                       "the request is not wanted any more");
    }
    if (error == ENOMEM || error == EFAULT || error == EHWPOISON) {
      // With what was made of it.
      munmap(std::exchange(mapped.address, nullptr), request.size);
      fd.Reset();
      const Bytes available = AvailableOnNode(request.node);
      return Short(node + ": asked " + FormatBytes(request.size) +
                       " of pinned memory, others took memory while it was made and " +
                       FormatBytes(available) + " are available now; release some or ask for less",
                   request.size, available);
    }
    return ErrnoError("MADV_POPULATE_WRITE", error);
  }
  // Without the right to lock, a machine without swap keeps the pages where they are all the same.
  if (mlock(address, request.size) != 0 && HasSwap()) return LockError(request.size, errno);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return ErrnoError("F_ADD_SEALS", errno);
  }
  mapped.address = nullptr;
  return HostChunk(std::move(fd), address, request.size);
}

}  // namespace gpulease::memory
