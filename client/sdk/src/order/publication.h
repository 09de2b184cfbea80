// SPDX-License-Identifier: Apache-2.0
//
// Publication: what travels with a lease that was allocated with `ordered`: a pinned lease of one
// page, its companion, whose id stands in a label of the lease. Whoever allocates or opens the
// lease has the companion open as long; it has a death notice, by which those who wait hear of the
// publisher's end.
//
// An event of a process that died is never complete (measured: a stream that waits for one stands
// still for good), so that no wait here looks at the event alone.
//
// Threads: any, one at a time. Fork: inert; LeaseRecord::Usable says so.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/result.h"
#include "client/sdk/src/lease_record.h"
#include "client/sdk/src/order/publication_page.h"

namespace gpulease {

class Publication {
 public:
  static constexpr char kLabel[] = "gpulease.order";

  // A companion for the lease that `options` ask for.
  static Result<std::shared_ptr<LeaseRecord>> Allocate(const std::shared_ptr<Session>& session,
                                                       const AllocateOptions& options);
  // Gives `lease` its Publication, if its label names a companion: `companion` when that is the
  // one, else the one that is opened. Errors: those of Open; kFailedPrecondition when it is none.
  static Status Attach(LeaseRecord& lease, std::shared_ptr<LeaseRecord> companion);
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  // As Lease::Publish, Lease::WaitPublished and Lease::published.
  Result<std::uint64_t> Publish();
  Result<std::uint64_t> PublishAfter(void* stream);
  Result<std::uint64_t> Wait(std::uint64_t sequence, std::chrono::milliseconds timeout);
  Result<std::uint64_t> WaitOn(std::uint64_t sequence, void* stream,
                               std::chrono::milliseconds timeout);
  Result<std::uint64_t> sequence() const;

  // Lets go of the companion without releasing it.
  Status Close();

 private:
  using Time = std::chrono::steady_clock::time_point;
  enum class Standing { kThere, kGone, kUnknown };
  // An event of another process, opened here.
  class Opened;

  Publication(std::shared_ptr<LeaseRecord> companion, std::shared_ptr<MappedRange> range,
              std::string subject);
  Status Writable() const;
  Result<std::shared_ptr<const CudaProcess>> Cuda() const;
  std::uint64_t Me() const;  // this session
  void BecomePublisher();
  // Whether a session has the lease still, as the daemon knows it; kNobody stands for the owner.
  Standing Stands(std::uint64_t session) const;
  // Notices that came since the last look: errors when the publisher is gone.
  Status CheckPublisher(std::uint32_t bell, std::uint64_t wanted);
  Error PublisherGone(std::uint64_t wanted) const;
  Error WaitOver(std::uint64_t wanted) const;
  Status AwaitSequence(std::uint64_t wanted, Time until);
  // The event on the page, whole.
  Result<PublicationPage::Event> AwaitEvent(std::uint64_t wanted, Time until);
  // Open, for those who wait.
  Result<cuda::CUevent> OpenToWait(const driver::CudaDriver& cuda,
                                   const PublicationPage::Event& event, std::uint64_t wanted);
  Result<cuda::CUevent> Open(const driver::CudaDriver& cuda, const EventHandle& handle);
  // The stream goes on after what was published before.
  Status Follow(const driver::CudaDriver& cuda, cuda::CUstream stream, const LocalEvent& own);
  // Records an event of the context behind what is on the stream, and has the page name it.
  Status Record(const driver::CudaDriver& cuda, cuda::CUcontext context, cuda::CUstream stream);
  void Leave();

  const std::shared_ptr<LeaseRecord> companion_;
  std::shared_ptr<MappedRange> range_;
  const std::string subject_;
  PublicationPage page_;

  std::mutex mutex_;
  // under mutex_
  std::shared_ptr<const CudaProcess> process_;
  std::map<cuda::CUcontext, LocalEvent> own_;
  std::shared_ptr<Opened> opened_;
  std::atomic<std::uint32_t> deaths_{0};  // that were looked into
};

}  // namespace gpulease
