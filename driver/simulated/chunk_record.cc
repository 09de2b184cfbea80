// SPDX-License-Identifier: Apache-2.0
#include "driver/simulated/chunk_record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

namespace gpulease::simulated {
namespace {

// A lock starts at 1<<61 | node<<28 | gpu<<22 and is as long as the chunk has granules, so that it
// ends before 1<<62 and no lock of another program is taken for one.
constexpr std::uint64_t kMark = std::uint64_t{1} << 61;
constexpr int kNodeShift = 28;
constexpr int kGpuShift = 22;
static_assert(kMaxGpus <= 1 << (kNodeShift - kGpuShift));
static_assert(kMaxCapacity / kGranularity < 1u << kGpuShift);

constexpr char kName[] = "gpulease-sim-%08x-%d-%llu";  // node, GPU, size

// A number at the start of `text`, which is then removed from it.
bool TakeNumber(std::string_view& text, std::uint64_t& number) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  number = 0;
  while (!text.empty() && text[0] >= '0' && text[0] <= '9') {
    number = number * 10 + static_cast<std::uint64_t>(text[0] - '0');
    text.remove_prefix(1);
  }
  return true;
}

struct Record {
  std::uint64_t inode = 0;
  std::uint64_t gpu = 0;
  Bytes size = 0;

  friend bool operator<(const Record& a, const Record& b) { return a.inode < b.inode; }
  friend bool operator==(const Record& a, const Record& b) { return a.inode == b.inode; }
};

// "17: OFDLCK ADVISORY  WRITE -1 00:01:2025 2305843010555871232 2305843010555871232"
void AddLine(std::string_view line, std::uint32_t node, std::vector<Record>& records) {
  if (line.find(": OFDLCK ") == std::string_view::npos) return;
  const std::size_t last = line.rfind(' ');
  const std::size_t before = line.rfind(' ', last - 1);
  const std::size_t colon = line.rfind(':', before);
  if (before == std::string_view::npos || colon == std::string_view::npos) return;
  std::string_view inode_text = line.substr(colon + 1, before - colon - 1);
  std::string_view start_text = line.substr(before + 1, last - before - 1);
  std::string_view end_text = line.substr(last + 1);
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  Record record;
  if (!TakeNumber(inode_text, record.inode) || !TakeNumber(start_text, start) ||
      !TakeNumber(end_text, end) || end < start) {
    return;
  }
  if (start >> kNodeShift != (kMark >> kNodeShift | node)) return;
  record.gpu = start >> kGpuShift & ((1u << (kNodeShift - kGpuShift)) - 1);
  record.size = (end - start + 1) * kGranularity;
  if (record.gpu < kMaxGpus) records.push_back(record);
}

struct Scan {
  int reads = 0;
  std::size_t hash = 0;  // of the whole text
};

// Adds the node's records to `records`.
Scan ScanLocks(std::uint32_t node, std::vector<Record>& records) {
  Scan scan;
  const UniqueFd file(open("/proc/locks", O_RDONLY | O_CLOEXEC));
  if (!file) return scan;
  char buffer[16 * 1024];  // the kernel gives a page at a time
  std::size_t kept = 0;
  for (;;) {
    const ssize_t got = read(file.get(), buffer + kept, sizeof buffer - kept);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    ++scan.reads;
    std::string_view text(buffer + kept, static_cast<std::size_t>(got));
    scan.hash = scan.hash * 31 + std::hash<std::string_view>()(text);
    text = std::string_view(buffer, kept + static_cast<std::size_t>(got));
    for (std::size_t end; (end = text.find('\n')) != std::string_view::npos;) {
      AddLine(text.substr(0, end), node, records);
      text.remove_prefix(end + 1);
    }
    kept = text.size() < sizeof buffer ? text.size() : 0;  // a line that long is none of ours
    std::memmove(buffer, text.data(), kept);
  }
  return scan;
}

}  // namespace

UniqueFd NewChunk(const ChunkIdentity& identity) {
  char name[96];
  std::snprintf(name, sizeof name, kName, identity.node, identity.gpu,
                static_cast<unsigned long long>(identity.size));
  UniqueFd chunk(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!chunk) return chunk;
  // Nobody can cut it short under a mapping.
  if (ftruncate(chunk.get(), static_cast<off_t>(identity.size)) != 0 ||
      fcntl(chunk.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    chunk.Reset();
  }
  return chunk;
}

bool RecordChunk(int chunk, const ChunkIdentity& identity) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(kMark | std::uint64_t{identity.node} << kNodeShift |
                                    static_cast<std::uint64_t>(identity.gpu) << kGpuShift);
  lock.l_len = static_cast<off_t>(identity.size / kGranularity);
  return fcntl(chunk, F_OFD_SETLK, &lock) == 0;
}

std::optional<ChunkIdentity> IdentifyChunk(int descriptor) {
  char path[48];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  char target[256];
  const ssize_t length = readlink(path, target, sizeof target - 1);
  if (length <= 0) return std::nullopt;
  target[length] = '\0';
  ChunkIdentity identity;
  unsigned long long size = 0;
  if (std::sscanf(target, "/memfd:gpulease-sim-%8x-%d-%llu", &identity.node, &identity.gpu,
                  &size) != 3) {
    return std::nullopt;
  }
  // The name is only what its maker said; the size is a fact.
  struct stat status;
  if (fstat(descriptor, &status) != 0 || static_cast<unsigned long long>(status.st_size) != size ||
      size == 0 || size % kGranularity != 0 || identity.gpu < 0 || identity.gpu >= kMaxGpus) {
    return std::nullopt;
  }
  identity.size = size;
  return identity;
}

Recording ReadRecords(std::uint32_t node) {
  // One read is one instant and has some fifty locks. Between two of them any process of the
  // machine may take a lock or lose one, and then others are listed twice or not at all. Two scans
  // that are the same to the letter are the truth; else what any of several has seen is.
  constexpr int kScans = 4;
  Recording recording;
  std::vector<Record> records;
  Scan scan = ScanLocks(node, records);
  recording.exact = scan.reads <= 1;
  for (int again = 1; !recording.exact && again < kScans; ++again) {
    std::vector<Record> seen;
    const Scan next = ScanLocks(node, seen);
    recording.exact = next.hash == scan.hash;
    if (recording.exact) records.clear();
    records.insert(records.end(), seen.begin(), seen.end());
    scan = next;
  }
  std::sort(records.begin(), records.end());
  records.erase(std::unique(records.begin(), records.end()), records.end());
  for (const Record& record : records) recording.bytes[record.gpu] += record.size;
  return recording;
}

}  // namespace gpulease::simulated
