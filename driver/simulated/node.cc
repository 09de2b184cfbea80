// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "driver/gpu_probe.h"
#include "driver/simulated/node_file.h"

namespace gpulease::simulated {
namespace {

// Steele, Lea, Flood: SplitMix64.
std::uint64_t Mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

Error NoRoom(const std::string& path, int error) {
  return WithContext("no room for the " + FormatBytes(sizeof(NodeFile)) + " of a simulated node",
                     ErrnoError("write " + path, error));
}

// Gives every page of the file its room: one that found none when it is first touched would be a
// SIGBUS, here and in each program that has the node mapped.
Status Reserve(int file, const std::string& path) {
  int error = 0;
  do {
    error = fallocate(file, 0, 0, sizeof(NodeFile)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0 || error == EOPNOTSUPP) return {};
  return NoRoom(path, error);
}

// A new file of that name, with these bytes or not there at all.
Status WriteNode(const std::string& path, const NodeFile& node) {
  unlink(path.c_str());
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) return ErrnoError("create " + path, errno);
  Status written;
  // Whatever the umask is.
  if (fchmod(file.get(), 0666) != 0) {
    written = ErrnoError("chmod " + path, errno);
  } else if (const ssize_t size = write(file.get(), &node, sizeof node); size != sizeof node) {
    written = NoRoom(path, size < 0 ? errno : ENOSPC);
  }
  if (!written.ok()) unlink(path.c_str());
  return written;
}

Result<std::shared_ptr<NodeMapping>> MapNode(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return ErrnoError("open simulated node " + path, errno);
  struct stat status;
  if (fstat(file.get(), &status) != 0) return ErrnoError("fstat " + path, errno);
  const auto strange = [&](const char* what) {
    return MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                     path + " " + what + ": make the simulated node anew");
  };
  if (static_cast<std::size_t>(status.st_size) != sizeof(NodeFile)) {
    return strange("is of another version of gpulease");
  }
  GPULEASE_RETURN_IF_ERROR(Reserve(file.get(), path));
  void* address =
      mmap(nullptr, sizeof(NodeFile), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) return ErrnoError("mmap " + path, errno);
  auto mapping = std::make_shared<NodeMapping>();
  mapping->file = static_cast<NodeFile*>(address);
  mapping->descriptor = std::move(file);
  const NodeFile& node = *mapping->file;
  if (node.magic != kNodeMagic || node.version != kNodeVersion || node.gpu_count == 0 ||
      node.gpu_count > kMaxGpus) {
    return strange("does not describe a simulated node of this version");
  }
  return mapping;
}

bool SameSpec(const NodeFile& file, const NodeSpec& spec) {
  if (file.gpu_count != spec.gpus.size()) return false;
  for (std::size_t i = 0; i < spec.gpus.size(); ++i) {
    if (file.gpus[i].capacity != spec.gpus[i]) return false;
  }
  return true;
}

// Adds `size` when the sum stays within `most`.
bool AddWithin(std::atomic<std::uint64_t>& sum, std::uint64_t size, std::uint64_t most) {
  std::uint64_t now = sum.load();
  while (now <= most && size <= most - now) {
    if (sum.compare_exchange_weak(now, now + size)) return true;
  }
  return false;
}

}  // namespace

NodeMapping::~NodeMapping() {
  if (file != nullptr) munmap(file, sizeof(NodeFile));
}

Bytes NodeMapping::Recorded(int gpu) const {
  return ReadRecords(file->node).bytes[static_cast<std::size_t>(gpu)];
}

NodeMapping::Outcome NodeMapping::MakeChunk(int gpu, Bytes size, UniqueFd* chunk) {
  GpuRecord& record = file->gpus[gpu];
  const ChunkIdentity identity = {file->node, gpu, size};
  const std::uint64_t outside = record.outside.load();
  const std::uint64_t most = outside < record.capacity ? record.capacity - outside : 0;
  if (size > most) return Outcome::kOutOfMemory;

  UniqueFd made = NewChunk(identity);
  if (!made) return Outcome::kOperatingSystem;
  // Record first, count after: who corrects the counter from the records then counts it in either
  // of both, and never in none.
  if (const std::uint64_t counted = record.upper_bound.load();
      counted <= most && size <= most - counted) {
    if (!RecordChunk(made.get(), identity)) return Outcome::kOperatingSystem;
    if (AddWithin(record.upper_bound, size, most)) {
      *chunk = std::move(made);
      return Outcome::kOk;
    }
    made = NewChunk(identity);
    if (!made) return Outcome::kOperatingSystem;
  }

  const std::lock_guard lock(mutex);
  while (flock(descriptor.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  Outcome outcome = Outcome::kOk;
  if (!RecordChunk(made.get(), identity)) {
    outcome = Outcome::kOperatingSystem;
  } else {
    // Others may let chunks go while they are counted: out of memory is said on a true count only,
    // or when one count after the other is too high.
    for (int doubtful = 0;;) {
      std::uint64_t counted = record.upper_bound.load();
      const Recording recording = ReadRecords(file->node);
      const Bytes recorded = recording.bytes[static_cast<std::size_t>(gpu)];
      if (recorded > most) {
        if (!recording.exact && ++doubtful < 3) continue;
        made.Reset();
        outcome = Outcome::kOutOfMemory;
        break;
      }
      if (record.upper_bound.compare_exchange_strong(counted, recorded)) break;
    }
  }
  flock(descriptor.get(), LOCK_UN);
  if (outcome == Outcome::kOk) *chunk = std::move(made);
  return outcome;
}

Result<Node> Node::Create(const std::string& directory, const NodeSpec& spec) {
  if (spec.gpus.empty() || spec.gpus.size() > kMaxGpus) {
    return MakeError(Code::kInvalidArgument, Reason::kBadField,
                     "a simulated node has 1 to " + std::to_string(kMaxGpus) + " GPUs, not " +
                         std::to_string(spec.gpus.size()));
  }
  // Every user of the node counts in it, whatever the umask of who made it.
  if (mkdir(directory.c_str(), 0755) == 0) {
    if (chmod(directory.c_str(), 0755) != 0) return ErrnoError("chmod " + directory, errno);
  } else if (errno != EEXIST) {
    return ErrnoError("mkdir " + directory, errno);
  }
  const std::string path = directory + kNodeFileName;
  if (Result<std::shared_ptr<NodeMapping>> there = MapNode(path);
      there.ok() && SameSpec(*(*there)->file, spec)) {
    return Node(*std::move(there));
  }

  std::uint64_t random[3] = {};
  if (getrandom(random, sizeof random, 0) != sizeof random) return ErrnoError("getrandom", errno);
  const auto node = std::make_unique<NodeFile>();
  node->magic = kNodeMagic;
  node->version = kNodeVersion;
  node->node = static_cast<std::uint32_t>(random[0]);
  node->seed[0] = random[1];
  node->seed[1] = random[2];
  node->gpu_count = static_cast<std::uint32_t>(spec.gpus.size());
  for (std::size_t i = 0; i < spec.gpus.size(); ++i) node->gpus[i].capacity = spec.gpus[i];
  // Written aside and renamed, so that nobody maps half a node.
  const std::string aside = path + "." + std::to_string(getpid());
  GPULEASE_RETURN_IF_ERROR(WriteNode(aside, *node));
  if (rename(aside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(aside.c_str());
    return ErrnoError("rename to " + path, error);
  }
  return Open(directory);
}

Result<Node> Node::Open(const std::string& directory) {
  Result<std::shared_ptr<NodeMapping>> mapping = MapNode(directory + kNodeFileName);
  if (!mapping.ok()) return std::move(mapping).error();
  return Node(*std::move(mapping));
}

int Node::gpu_count() const { return static_cast<int>(mapping_->file->gpu_count); }

Bytes Node::capacity(int gpu) const { return mapping_->file->gpus[gpu].capacity; }

std::uint32_t Node::id() const { return mapping_->file->node; }

cuda::CUuuid NodeUuid(const NodeFile& file, int gpu) {
  const std::uint64_t halves[2] = {Mixed(file.seed[0] + static_cast<std::uint64_t>(gpu)),
                                   Mixed(file.seed[1] + static_cast<std::uint64_t>(gpu))};
  cuda::CUuuid uuid;
  static_assert(sizeof halves == sizeof uuid.bytes);
  std::memcpy(uuid.bytes, halves, sizeof uuid.bytes);
  return uuid;
}

cuda::CUuuid Node::uuid(int gpu) const { return NodeUuid(*mapping_->file, gpu); }

std::string Node::uuid_text(int gpu) const { return driver::FormatUuid(uuid(gpu)); }

Bytes Node::Used(int gpu) const {
  return mapping_->Recorded(gpu) + mapping_->file->gpus[gpu].outside.load();
}

void Node::SetOutsideBytes(int gpu, Bytes bytes) { mapping_->file->gpus[gpu].outside = bytes; }

void Node::SetPresent(int gpu, bool present) { mapping_->file->gpus[gpu].absent = present ? 0 : 1; }

bool Node::present(int gpu) const { return mapping_->file->gpus[gpu].absent.load() == 0; }

void Node::SetUtilization(int gpu, int percent) {
  mapping_->file->gpus[gpu].utilization = static_cast<std::uint32_t>(percent);
}

int Node::utilization(int gpu) const {
  return static_cast<int>(mapping_->file->gpus[gpu].utilization.load());
}

}  // namespace gpulease::simulated
