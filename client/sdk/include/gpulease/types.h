// SPDX-License-Identifier: Apache-2.0
//
// The plain types of gpulease for C++: what is asked for, what is told, and what went wrong.
// Programs include gpulease/gpulease.h.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#define GPULEASE_API __attribute__((visibility("default")))

namespace gpulease {

// Not v1: that is where protoc puts the messages of the API, which a program may use beside this.
inline namespace abi_v1 {

// gRPC's codes, by number.
enum class ErrorCode : int {
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16
};

// Why; gpulease.v1.Reason, by number.
enum class ErrorReason : int {
  kUnspecified = 0,
  kBadField = 1,
  kTooLarge = 2,
  kTenantLimit = 3,
  kMemoryShort = 4,
  kDescriptorLimit = 5,
  kSessionLimit = 6,
  kNoSuchGpu = 7,
  kGpuUnavailable = 8,
  kNameTaken = 9,
  kNotOpenable = 10,
  kSessionEnded = 11,
  kStopping = 12,
  kWaitOver = 13,
  kHandOver = 14,
  kDriver = 15,
  kUnsupported = 16,
  kHostMemoryShort = 17,
  kDriverMemoryShort = 18,
  kDeviceLost = 19,
  kNotSealed = 20,
  kSealed = 21,
  kSuspended = 50,     // its memory is given back for now: retry once its owner has resumed it
  kNotPartaking = 51,  // processes that have it open do not take part in suspending it
  kPeerGone = 40       // a process that was waited for has died, has left or gave up
};

// A lease that stands in the way. pid is 0 where the daemon's PID namespace does not have the
// owner.
struct BlockingLease {
  std::uint64_t lease_id = 0;
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  std::uint64_t size_bytes = 0;
};

// What went wrong: what() is a sentence that says what was asked, what stands against it and what
// helps.
class GPULEASE_API Exception : public std::runtime_error {
 public:
  Exception(ErrorCode code, ErrorReason reason, const std::string& message,
            std::uint64_t requested_bytes = 0, std::uint64_t available_bytes = 0,
            std::vector<BlockingLease> blockers = {});
  Exception(const Exception&) noexcept;
  ~Exception() override;
  ErrorCode code() const { return code_; }
  ErrorReason reason() const { return reason_; }
  std::uint64_t requested_bytes() const { return requested_bytes_; }  // 0: not about bytes
  std::uint64_t available_bytes() const { return available_bytes_; }
  // Who holds what was asked for, the largest first, at most 8.
  const std::vector<BlockingLease>& blockers() const { return *blockers_; }

 private:
  ErrorCode code_;
  ErrorReason reason_;
  std::uint64_t requested_bytes_;
  std::uint64_t available_bytes_;
  std::shared_ptr<const std::vector<BlockingLease>> blockers_;
};

enum class Access { kReadOnly, kReadWrite };
enum class MemoryKind { kDevice, kHost };
// Host memory: kAuto takes 2 MiB pages where the machine has enough of them free.
enum class PageSize { kAuto, kSmall, kHuge };

// What memory is for: decides which memory it is. gpuleasectl advise prints the table.
enum class Usage {
  kNone = 0,
  kCompute = 1,    // kernels of one GPU read and write it
  kStaging = 2,    // copied to or from one GPU
  kBulkStore = 3,  // much that is seldom used, kept at hand
  kShared = 4,     // several GPUs, and processes without one, use the same copy
  kCpuStream = 5   // the CPU writes small pieces that a GPU reads at once
};

enum class LeaseState {
  kUnknown,
  kQueued,
  kOffered,
  kLeased,
  kRevoking,
  kReleased,
  kReleasing,
  kUnconfirmed,
  kQuarantined
};

struct AllocateOptions {
  // Rounded up to the granularity: 2 MiB on a GPU, a page on the host.
  std::uint64_t size_bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  // Decides in place of `kind`, and of a page size that is not given.
  Usage usage = Usage::kNone;
  // Of the mapped address: a power of two up to 1 GiB; 0: the granularity.
  std::uint64_t alignment_bytes = 0;
  // kDevice: "GPU-..."; empty: the GPU with the most free memory. kHost: near to this GPU.
  std::string gpu_uuid = {};
  std::optional<int> numa_node = {};  // kHost
  PageSize page_size = PageSize::kAuto;
  // By which others open it: 1 to 128 of [A-Za-z0-9._-], unique among the user's leases.
  std::string name = {};
  // Who may open it by name or id, as a file's mode; the group bits speak of `gid`.
  unsigned mode = 0600;
  std::optional<std::uint32_t> gid = {};  // absent: the process's primary group
  std::map<std::string, std::string> labels = {};
  // How long it outlives the last process that has a right to it, its name with it: others open it
  // as ever meanwhile, and a process of the same user takes it over (Client::Claim). What nobody
  // has taken yet, and what is being loaded, does not last.
  std::chrono::milliseconds linger{0};
  // It lasts until somebody releases it.
  bool persistent = false;
  // kDevice: makes it elastic. It begins with size_bytes, is charged for what it has, and grows and
  // shrinks by Lease::Resize within so many bytes of addresses (size_bytes to 16 TiB, also more
  // than the GPU has) that its mappings reserve. 0: it keeps its size.
  std::uint64_t reserve_bytes = 0;
  // How long it may wait in the queue while others hold the memory. 0: fail at once.
  std::chrono::milliseconds wait{0};
  // At most 64 of [A-Za-z0-9._-], unique in the Client. Empty: one is made. A retry with the same
  // id, also after a lost connection, gives the same lease.
  std::string request_id = {};
  // Whoever opens it can wait for what is published: Lease::Publish. It takes a page of pinned host
  // memory beside the lease, which travels with it, and one of the 16 labels ("gpulease.order").
  bool ordered = false;
  // kHost, not in huge pages: the daemon says in the memory itself when a process died that had the
  // lease: see AllocationSpec.death_notice in lease.proto.
  bool death_notice = false;
  // kDevice: others open it by a 64-byte CUDA IPC handle (Lease::ipc_handle), for programs that
  // take nothing else. Not elastic, aligned to 2 MiB. Who opens it so cannot be tracked, and writes
  // if he likes; it ends when the daemon's helper process for that GPU dies, whose CUDA context
  // takes about half a GiB there while there is such a lease.
  bool ipc_handle = false;
};

// How programs that know nothing of leases open one: cuIpcOpenMemHandle, cudaIpcOpenMemHandle, and
// what stands on them. All three belong together.
struct IpcHandle {
  std::array<unsigned char, 64> bytes{};
  std::uint64_t offset_bytes = 0;  // of the lease in what the handle opens
  std::uint64_t size_bytes = 0;    // of the lease
};

struct ClientOptions {
  std::string runtime_dir = {};  // empty: GPULEASE_RUNTIME_DIR, else /run/gpulease
  std::string program = {};      // what people see in listings; empty: the process's own name
  // How long to try to reach the daemon, first and after each loss of the connection.
  std::chrono::milliseconds connect_timeout{5000};
  // How long a call may take that does not wait for memory.
  std::chrono::milliseconds call_timeout{30000};
  // false: never loads CUDA. Device memory cannot be mapped then, host memory is not registered.
  bool use_cuda = true;
};

struct MapOptions {
  std::optional<Access> access = {};  // absent: the lease's; never more than that
  // Device memory: further GPUs of this process that may use the address (peer access).
  std::vector<std::string> peer_gpu_uuids = {};
  // Host memory: register it with CUDA, so that copies are fast and asynchronous. It is done anyway
  // when the calling thread has a current context (unless ClientOptions::use_cuda is false); true
  // also uses the primary context of the process's first GPU, which creates it where it is not.
  bool register_with_cuda = false;
};

// Around a suspend, for libraries that know the range (registered memory, captured graphs):
// `before` while everything is still mapped, `after` when it is again. They may be null. They are
// called within Suspend, Resume and Refresh, and call nothing of the same Lease. What `before`
// throws calls the suspend off here and comes out of that call.
struct SuspendHooks {
  std::function<void()> before = {};
  std::function<void()> after = {};
};

// Called while contents are copied; `done_bytes` rises to `total_bytes`. What it throws ends the
// copy and comes out of the call: then everything is as before it.
using CopyProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

struct SuspendOptions {
  // The contents are not wanted: nothing is copied, and resumed memory reads as zeros.
  bool discard = false;
  // How long to wait for the other holders; and, where it was not prepared, for pinned memory.
  std::chrono::milliseconds wait{0};
  CopyProgress progress = {};
};

struct ResumeOptions {
  std::chrono::milliseconds wait{0};  // for memory, in the queue; 0: fail at once
  CopyProgress progress = {};
};

struct GpuStatus {
  std::string uuid;
  std::string name;
  // The CUDA ordinal of it in this process, or -1 when it is not visible here
  // (CUDA_VISIBLE_DEVICES) or there is no CUDA.
  int ordinal = -1;
  bool ready = false;   // memory can be leased from it now
  std::string message;  // why not
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t leased_bytes = 0;
  std::uint64_t outside_bytes = 0;  // used by others than the broker
  int numa_node = -1;
};

struct HostPoolStatus {
  int numa_node = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t leased_bytes = 0;
};

struct NodeStatus {
  std::string version;   // of the daemon
  std::string instance;  // 32 hex digits; new when a restart of the daemon has ended all leases
  bool simulated = false;
  std::vector<GpuStatus> gpus;
  std::vector<HostPoolStatus> host;
};

// What may still be leased from one GPU (or NUMA node), by this process.
struct BudgetStatus {
  MemoryKind kind = MemoryKind::kDevice;
  std::string gpu_uuid;  // kDevice
  int numa_node = -1;    // kHost
  // The largest lease that would be granted now, without a wait.
  std::uint64_t leasable_bytes = 0;
  std::uint64_t free_bytes = 0;         // by the books, before limits and those who wait
  std::uint64_t mine_bytes = 0;         // charged to leases of this user
  std::uint64_t tenant_left_bytes = 0;  // of the tenant's limit; all bits set: it has none
  std::uint32_t waiting = 0;            // requests that would come first
  std::string message;                  // why nothing is granted
  // What would make room, the largest first, at most 8.
  std::vector<BlockingLease> holders;
};

// Where a device lease's contents are; gpulease.v1.Residence, by number.
enum class Residence { kResident, kSuspending, kSuspended, kResuming };

struct LeaseStatus {
  std::uint64_t id = 0;
  std::uint64_t generation = 0;
  MemoryKind kind = MemoryKind::kDevice;
  LeaseState state = LeaseState::kUnknown;
  std::uint64_t size_bytes = 0;
  std::uint64_t requested_bytes = 0;
  std::string gpu_uuid;
  int numa_node = -1;
  std::string name;
  std::string owner;
  std::uint32_t uid = 0;
  std::uint32_t mode = 0;
  std::string tenant;
  std::map<std::string, std::string> labels;
  bool death_notice = false;
  bool ipc = false;  // opened by a handle, too: such importers are no holders
  std::uint32_t holder_count = 0;
  std::uint32_t queue_position = 0;
  std::vector<BlockingLease> blockers;  // kQueued: who holds what it waits for
  bool loading = false;                 // being filled: it opens when it is sealed
  bool sealed = false;                  // opens for reading alone
  std::string content_tag;
  bool persistent = false;
  std::chrono::milliseconds linger{0};
  bool orphan = false;               // its owner is gone, and it lasts
  std::uint64_t reserved_bytes = 0;  // of an elastic lease
  // Not 0: the size that it is about to have, when there is memory or its holders have let go.
  std::uint64_t target_bytes = 0;
  Residence residence = Residence::kResident;
  std::uint64_t suspended_bytes = 0;  // kSuspended, kResuming: the size that it has once resumed
};

// A process that has a lease open. pid is 0 where the daemon's PID namespace does not have it.
struct LeaseHolder {
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  std::string program;
};

// Where something lies in a sealed lease: one tensor, or whatever its writer calls so.
struct DirectoryEntry {
  std::string name;  // 1 to 255 bytes
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> shape = {};  // at most 16 dimensions
  std::string dtype = {};                 // "float16", as its reader understands it
};

enum class EventType {
  kUnknown,
  kGranted,     // a queued lease is ready
  kReleased,    // a lease's owner released it
  kOwnerGone,   // a lease's owner died; holders keep it
  kRevoked,     // let go of the lease
  kExpired,     // a queued lease waited too long
  kGpuState,    // a GPU's state changed
  kStopping,    // the daemon is about to stop
  kLostEvents,  // some are missing (slow reader, or a new connection): read the state anew
  kReady,       // the first of each stream: events from here on are delivered
  kDeviceLost,  // the lease's GPU was lost, and the lease with it: unmap it
  kSealed,      // a lease that is open here is complete
  kResized,     // one has another size, or is about to shrink: Lease::Refresh
  kSuspending,  // a lease that is open here is about to give its memory back: Lease::Refresh
  kResumed      // it has its memory and its contents again: Lease::Refresh
};

struct Event {
  EventType type = EventType::kUnknown;
  std::uint64_t sequence = 0;
  std::uint64_t lease_id = 0;
  std::string name;
  std::string gpu_uuid;
  std::string message;
};

}  // namespace abi_v1
}  // namespace gpulease
