// SPDX-License-Identifier: Apache-2.0
//
// gpulease for C++: lease GPU memory and pinned host memory from the node's daemon, map it, share
// it by name.
//
//   gpulease::Client client;
//   gpulease::Lease weights =
//       client.Allocate({.size_bytes = 4ull << 30, .name = "weights", .mode = 0640});
//   gpulease::Mapping mapped = weights.Map();  // device memory: a CUdeviceptr; host: a pointer
//   cuMemcpyHtoD(mapped.device_pointer(), source, mapped.size_bytes());
//
// and in another process
//
//   gpulease::Client client;
//   gpulease::Lease weights = client.Open("alice/weights", gpulease::Access::kReadOnly);
//
// Objects are owners: a Mapping unmaps, a Lease lets go (the owner's releases), a Client ends its
// session, each when destroyed; a Mapping keeps its Lease's memory, a Lease its Client's
// connection, so that any order of destruction is right. When the process dies, all of it comes
// back by itself.
//
// Errors are thrown as gpulease::Exception. Destructors never throw. Nothing here creates a thread.
// Every class may be used from several threads at once; moving from, assigning to or destroying one
// object is for one thread, as ever.
//
// Fork: what a child inherits is inert, and its descriptors are closed there. Its calls throw
// Exception with ErrorReason::kSessionEnded ("created before fork"), its destructors and its exit
// change nothing for the parent; a Client made in the child is the child's own. Mapped host memory
// is not there in the child (MADV_DONTFORK), mapped device memory is not usable there (CUDA).
//
// Restart of the daemon: the next call connects anew, for up to ClientOptions::connect_timeout.
// Leases that the new daemon still knows go on; those that it does not are gone: their calls throw
// kFailedPrecondition with ErrorReason::kSessionEnded, and what is mapped stays usable for this
// process until it is unmapped.
//
// CUDA: libcuda.so.1 is loaded on the first device mapping and not before, and no context is ever
// created for mapping device memory. The address of a Mapping is valid in every context of its GPU.
//
// Order: mapping memory orders nothing between processes, neither what processors write nor what a
// GPU does. Lease::Publish tells others that what was written is there, also by work on a stream
// that is still running, and Lease::WaitPublished waits for it; gpulease/barrier.h has barriers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpulease/types.h"

namespace gpulease {

inline namespace abi_v1 {

// What stands behind the objects; not part of the interface.
class Session;
class LeaseRecord;
class MappedRange;
class PendingRecord;

// One lease's memory in this process's address space. Unmaps when destroyed, once no other Mapping
// of the same lease and access is left. Movable.
class GPULEASE_API Mapping {
 public:
  Mapping();  // empty: all zero
  Mapping(Mapping&&) noexcept;
  Mapping& operator=(Mapping&&) noexcept;
  ~Mapping();

  explicit operator bool() const { return range_ != nullptr; }
  // The CUdeviceptr. Of host memory: of its registration with CUDA, or 0 when it is not registered.
  std::uint64_t device_pointer() const;
  void* host_pointer() const;          // null for device memory
  std::span<std::byte> bytes() const;  // empty for device memory
  // Of the whole lease: the asked size rounded up. All of it may be used. Of an elastic lease: what
  // it has here now.
  std::uint64_t size_bytes() const;
  Access access() const;
  int device_ordinal() const;  // -1 for host memory
  std::uint64_t lease_id() const;

 private:
  friend class Lease;
  explicit Mapping(std::shared_ptr<MappedRange> range);
  std::shared_ptr<MappedRange> range_;
};

// The right to a piece of memory, as its owner or as one who opened it. Movable. The last Lease and
// Mapping of it that goes releases it (owner; unless it lasts, see AllocateOptions::linger) or
// closes it; errors of that are ignored, as the daemon takes everything back at the latest when the
// process ends.
class GPULEASE_API Lease {
 public:
  Lease();  // empty
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;
  ~Lease();

  explicit operator bool() const { return record_ != nullptr; }
  std::uint64_t id() const;
  // Rises from lease to lease: what has the same name and another generation was put in its place.
  std::uint64_t generation() const;
  const std::string& name() const;
  std::uint64_t size_bytes() const;  // what is mapped and charged
  std::uint64_t requested_bytes() const;
  std::uint64_t reserved_bytes() const;  // of an elastic lease; 0: it keeps its size
  std::uint64_t alignment_bytes() const;
  MemoryKind kind() const;
  const std::string& gpu_uuid() const;  // kDevice
  int numa_node() const;                // kHost; -1 when the machine says nothing
  PageSize page_size() const;           // kHost: kSmall or kHuge
  const std::string& owner() const;     // the owning user
  bool owned() const;                   // allocated by this Client
  Access access() const;                // what it was opened for
  std::vector<std::uint64_t> chunk_sizes() const;
  // As of when it was opened, or sealed here.
  bool sealed() const;
  const std::string& content_tag() const;

  // Maps the memory, all chunks in one contiguous range. A second call gives a Mapping of the same
  // range. A lease with an ipc_handle() is opened by it: for writing whatever access is asked for,
  // for its own GPU alone, and in the GPU's primary context, which is made where it is not.
  //
  // Throws, and leaves nothing behind:
  //   kFailedPrecondition  released or closed before; the GPU is not visible to this process; no
  //                        usable CUDA here (kUnsupported)
  //   kPermissionDenied    more access than the lease's
  //   kInternal            the driver refused; the message names the step
  //   kResourceExhausted   locked-memory limit (host memory), or the driver is out of memory
  Mapping Map(const MapOptions& options = {}) const;

  // Of a lease that was allocated with AllocateOptions::ipc_handle, for programs that take a
  // handle. Keep this Lease for as long as they use it: importers are not seen, and hold nothing.
  // Of their openings each is for writing, whatever this one's access() is. A handle is opened once
  // for a process by most of them: do not also Map() there. Throws kFailedPrecondition
  // (kUnsupported) for another lease.
  IpcHandle ipc_handle() const;

  // The chunks' descriptors, in the order of their offsets, for other libraries (VMM import,
  // graphics). They are duplicates, close-on-exec: the caller closes them. That of a lease with an
  // ipc_handle() keeps the memory while it is open, and cannot be imported.
  std::vector<int> DuplicateDescriptors() const;

  // Says that the contents are complete: from here on everybody opens it for reading alone, this
  // process too; Mappings for writing that are there are written no more. Owner only, no other
  // thread uses this Lease meanwhile. `content_tag` (at most 255 bytes, a digest for instance) is
  // what readers tell contents by, `directory` (at most 65,536 entries, 2 MiB) says where things
  // lie. Wait for GPU work that writes it before.
  //
  // Throws:
  //   kFailedPrecondition  it is sealed with another tag (kSealed), or another process has it open
  //                        for writing (kNotSealed)
  //   kInvalidArgument     an entry lies outside the lease, stands twice or has a field out of
  //   range
  void Seal(std::string_view content_tag = {}, std::span<const DirectoryEntry> directory = {});
  // What Seal() was given; empty when that was nothing.
  std::vector<DirectoryEntry> Directory() const;

  // Gives an elastic lease (AllocateOptions::reserve_bytes) another size. Its Mappings grow and
  // shrink with it, in place: no pointer moves. Owner only. It grows as a lease is allocated,
  // within the same limits and through the same queue, for which it waits as long as `wait` says;
  // what is new reads as zeros. It shrinks by whole chunks: those at its end that lie behind
  // `size_bytes` altogether; each call that makes it grow makes chunks of its own. Wait for GPU
  // work that uses what goes before: it is unmapped here first.
  //
  // Gives those who still have mapped what is to go, after `wait` at the latest: it goes when they
  // have called Refresh() or ended, and counts as the lease's until then. Empty: it has its size.
  //
  // Throws, and leaves it as it was (a call that was lost on the way may be made again):
  //   kInvalidArgument     0, or more than reserved_bytes()
  //   kFailedPrecondition  not elastic (kUnsupported), sealed (kSealed), not the owner's
  //   and what Allocate and Map throw.
  std::vector<LeaseHolder> Resize(std::uint64_t size_bytes,
                                  std::chrono::milliseconds wait = std::chrono::milliseconds{0});
  // Brings a device lease that was opened here up to what its owner made of it, in all its
  // Mappings: another size of an elastic one, its memory given back (TakePart) or there again. What
  // the owner is about to free is let go of, so finish work that uses it before. True: something
  // changed. Call it after an event kResized, kSuspending or kResumed, or now and then. Throws what
  // Map throws: then it is as it was, and the call may be made again; and
  //   kFailedPrecondition  (kSuspended) its owner ended while it was suspended: its contents are
  //                        gone, close it
  bool Refresh();

  // ---- suspend and resume, of device memory

  // Leases the pinned host memory that Suspend() copies to, near to the GPU, and registers it with
  // CUDA, so that Suspend() need not: about 0.3 s a GiB. It is a lease of this Client with the
  // label "gpulease.suspend", serves every further Suspend(), and goes with this lease or by
  // DropSuspendRoom(). Owner only. Waits as long as `wait` says. Throws what Allocate and Map
  // throw.
  void PrepareSuspend(std::chrono::milliseconds wait = std::chrono::milliseconds{0});
  // Gives that memory back. Throws kFailedPrecondition (kSuspended) while the contents are there.
  void DropSuspendRoom();
  // Gives the lease's device memory back, for everybody, and keeps all pointers: the contents go to
  // pinned host memory of this process, the addresses stay reserved. Owner only. It waits for the
  // GPU work of the thread's context, and of no other; nobody uses the memory until Resume().
  // The others that have it open let go first, each by its Refresh(); until they have, nothing is
  // copied or freed. While it is suspended it cannot be mapped, opened, resized or sealed, and when
  // this process ends it is over.
  //
  // Gives those who still have to let go, after `wait` at the latest: nothing was copied then, the
  // call may be made again to go on, and Resume() calls it off. Empty: it is suspended.
  //
  // Throws, and leaves everything as it was (the range mapped, the contents there):
  //   kFailedPrecondition  others have it open that do not take part (kNotPartaking): the message
  //                        names them; it outlives its owner (kUnsupported); it grows or shrinks;
  //                        not the owner's
  //   kResourceExhausted, kUnavailable   no pinned memory for the contents
  //   kInternal            the driver refused; the message names the call
  // When the daemon cannot be reached in the last step, the range is unmapped, the contents are
  // kept, and the call throws: make it again, or Resume().
  std::vector<LeaseHolder> Suspend(const SuspendOptions& options = {});
  // Brings memory and contents back, at the same addresses, with the same access in every Mapping;
  // nothing else changes hands before the contents are there. Owner only.
  //
  // Throws, and leaves it suspended: what Allocate and Map throw. The call may be made again.
  void Resume(const ResumeOptions& options = {});
  // This process lets go of the lease when its owner suspends it: with the next Refresh() after an
  // event kSuspending, which unmaps it, and maps it again after kResumed. The owner takes part in
  // any case, and gives its hooks by this. A second call replaces the hooks.
  void TakePart(SuspendHooks hooks = {});
  // Whether it is unmapped here for a suspend.
  bool suspended() const;

  // Ends the lease for everybody who does not have it open yet; its name is free at once. Owner
  // only, and after its mappings are gone (else kFailedPrecondition). The Lease is empty after it.
  void Release();
  // Lets go of it without releasing it: what was opened is closed; an owned lease lives on with
  // those who have it open, and one that lasts for whoever comes (Client::Claim). Mappings must be
  // gone. The Lease is empty after it.
  void Close();

  // ---- order, of a lease that was allocated with AllocateOptions::ordered

  // Tells those who wait that what was written to the lease is there: by this thread, or by the
  // work that was put on a stream until now (a CUstream; null is the default one), which need not
  // have run yet. Gives the number of the publication: 1 is the first.
  //
  // One process publishes at a time; the next one who does takes over, and is ordered after the
  // former. It costs one event for each lease, process and context, however often it is called (a
  // process can have 4,096). The lease lets go of it when it goes, and waits until that work is
  // done.
  //
  // Throws:
  //   kFailedPrecondition  the lease was allocated without `ordered`; no usable CUDA here
  //                        (kUnsupported); the session is over
  //   kPermissionDenied    it was opened for reading
  //   kInternal            the driver refused; the message names the call. Nothing was published.
  std::uint64_t Publish();
  std::uint64_t Publish(void* stream);
  // Waits until `sequence` was published, and what was written is there: then the thread may use it
  // or have a GPU use it. Gives the number that was reached. With a stream it returns as soon as it
  // was published, and what is put on the stream from then on runs after the publisher's work.
  //
  // A publisher that dies ends the wait at once. But the driver never completes an event whose
  // process died before its work was done: a stream that waits for it already stands still for
  // good. Where publishers may be killed in the middle of their work, wait without a stream.
  //
  // Throws:
  //   kAborted             (kPeerGone) who published last, or the owner while nobody has, is gone:
  //                        what was waited for does not come. It may be waited for anew when
  //                        somebody else publishes.
  //   kDeadlineExceeded    `timeout` was over
  //   kFailedPrecondition  as above; or the thread has no current context, and it was published
  //                        after a stream
  //   kInternal            the driver refused; the message names the call
  std::uint64_t WaitPublished(std::uint64_t sequence, std::chrono::milliseconds timeout) const;
  std::uint64_t WaitPublished(std::uint64_t sequence, void* stream,
                              std::chrono::milliseconds timeout) const;
  // How many were published; their work may still run. Asks nobody.
  std::uint64_t published() const;

 private:
  friend class Client;
  friend class PendingLease;
  explicit Lease(std::shared_ptr<LeaseRecord> record);
  std::shared_ptr<LeaseRecord> record_;
};

// A request that may still be in the queue. Gives its place up when destroyed before it was
// granted. Movable.
class GPULEASE_API PendingLease {
 public:
  PendingLease();  // empty
  PendingLease(PendingLease&&) noexcept;
  PendingLease& operator=(PendingLease&&) noexcept;
  ~PendingLease();

  explicit operator bool() const { return record_ != nullptr; }
  std::uint64_t id() const;  // the lease's
  bool ready() const;        // Wait() will not wait
  // As of the request: 1 is the next to be served; 0: it is being prepared or is ready.
  std::uint32_t queue_position() const;
  const std::vector<BlockingLease>& blockers() const;  // as of the request
  // The lease, or nothing when `timeout` was over first: the place in the queue is kept then.
  // Throws kDeadlineExceeded (kWaitOver) when AllocateOptions::wait was over. Empty after a Lease
  // came out.
  std::optional<Lease> Wait(std::chrono::milliseconds timeout);
  // Gives the place up.
  void Cancel();

 private:
  friend class Client;
  explicit PendingLease(std::shared_ptr<PendingRecord> record);
  std::shared_ptr<PendingRecord> record_;
};

// What LoadOrAttach gave.
struct LoadedLease {
  Lease lease;
  // true: this process is the one that fills it: write it, then Seal() it; to give up, Release() it
  // or let it go. false: it is complete, and open for reading.
  bool fill = false;
};

// One session with the daemon. Movable. Destroying it ends the session once no Lease and no Mapping
// of it is left.
class GPULEASE_API Client {
 public:
  // Connects. Throws:
  //   kUnavailable        no daemon answers there within connect_timeout
  //   kPermissionDenied   the socket's mode, group or a security module forbids it
  //   kFailedPrecondition the daemon does not serve this client's version
  explicit Client(const ClientOptions& options = {});
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  // Leases memory, which reads as zeros; waits in the queue for as long as `options.wait` says.
  //
  // Throws:
  //   kInvalidArgument     a field is out of range, or more than could ever be given
  //   kNotFound            gpu_uuid names no GPU of the node
  //   kAlreadyExists       the name is taken
  //   kResourceExhausted   a limit: the tenant's, or of descriptors (the daemon's or this
  //   process's) kUnavailable         others hold the memory and `wait` is 0, see blockers(); or
  //   the GPU is lost kDeadlineExceeded    `wait` was over (kWaitOver)
  Lease Allocate(const AllocateOptions& options);
  // All of them or none. `wait` counts for all; that of the single options is ignored.
  std::vector<Lease> AllocateMany(std::span<const AllocateOptions> options,
                                  std::chrono::milliseconds wait = std::chrono::milliseconds{0});
  // As Allocate, and returns at once with the place in the queue.
  PendingLease Request(const AllocateOptions& options);

  // "weights" is this user's, "alice/weights" alice's, "1001/weights" that of the user of this id.
  // In a container these are the container's users: "alice@/weights" is of the machine's alice,
  // "root@REALM/weights" of another container's root.
  //
  // Throws:
  //   kNotFound            this user has no lease of this name
  //   kPermissionDenied    another's, which does not exist or may not be opened so
  Lease Open(std::string_view name, Access access = Access::kReadWrite);
  Lease Open(std::uint64_t lease_id, Access access = Access::kReadWrite);

  // The lease `options.name` with its contents, loaded once for all: of all processes that ask for
  // the name, exactly one gets it to fill, the others wait until that one has sealed it, and then
  // have it open for reading. When that one ends or gives up before, another gets fresh memory to
  // fill. `options` are of the lease that is made when there is none; give it `persistent` or
  // `linger` for it to outlive who filled it. A name of another user ("alice/weights") is attached
  // and waited for, never filled.
  //
  // Throws, beside what Allocate and Open throw:
  //   kDeadlineExceeded    (kWaitOver) it was not sealed within `timeout`
  //   kFailedPrecondition  (kNotSealed) there is such a lease, and nobody is loading it
  LoadedLease LoadOrAttach(const AllocateOptions& options, std::chrono::milliseconds timeout);
  // Takes over a lease of this user that has outlived its owner: it is this Client's, open for
  // writing unless it is sealed.
  // Throws: kNotFound; kFailedPrecondition when it has an owner.
  Lease Claim(std::string_view name);

  NodeStatus Node();
  // What may still be leased, what is mine, what would make room: from the daemon's books, without
  // any use of CUDA.
  std::vector<BudgetStatus> Budget();
  // Those that this user owns, holds or may open.
  std::vector<LeaseStatus> Leases();

  // For poll(2): readable when NextEvent() may have something. Subscribes on the first call.
  // Belongs to the Client; the caller neither reads nor closes it.
  int EventDescriptor();
  // The next event, or nothing within `timeout`. Subscribes on the first call.
  std::optional<Event> NextEvent(std::chrono::milliseconds timeout = std::chrono::milliseconds{0});

  std::uint64_t session_id() const;
  std::string instance() const;  // of the daemon's run, 32 hex digits
  std::string daemon_version() const;

 private:
  friend class Barrier;
  std::shared_ptr<Session> session_;
};

}  // namespace abi_v1
}  // namespace gpulease
