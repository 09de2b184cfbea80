// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/leasing.h"

#include <type_traits>
#include <utility>

#include "client/sdk/src/conversion.h"
#include "client/sdk/src/hand_over.h"
#include "client/sdk/src/order/publication.h"
#include "client/sdk/src/pending_record.h"

namespace gpulease {
namespace {

// An Open that met the lease's closing in another thread begins anew; more often is no accident.
constexpr int kMaxOpens = 100;

// Opens a lease by `request`, of OpenMethod or ClaimMethod. `owned`: it is this session's
// afterwards.
template <typename Method>
Result<std::shared_ptr<LeaseRecord>> TakeRecord(const std::shared_ptr<Session>& session,
                                                const typename Method::Request& request,
                                                bool owned) {
  for (int attempt = 0; attempt < kMaxOpens; ++attempt) {
    HandOver hand_over(session, false);
    auto reply = hand_over.Call<Method>(request, {.deadline = session->CallDeadline()});
    if (!reply.ok()) return std::move(reply).error();
    if (!reply->lease)
      return MakeError(Code::kInternal, Reason::kUnspecified, "the daemon opened no lease");
    auto handed = hand_over.Collect({&*reply->lease, 1});
    if (!handed.ok()) return std::move(handed).error();
    Access access = Access::kReadWrite;
    if constexpr (std::is_same_v<Method, wire::OpenMethod>) {
      if (request.access == wire::Access::kReadOnly) access = Access::kReadOnly;
    } else if (reply->lease->sealed) {
      access = Access::kReadOnly;
    }
    auto record = LeaseRecord::Make(session, hand_over.epoch(), std::move(*reply->lease),
                                    std::move(handed->front()), owned, access);
    if (!record) continue;
    // Another record of it may have other chunks of it by now.
    if (record->lease().kind == wire::MemoryKind::kDevice &&
        record->chunk_sizes().size() != record->lease().chunks.size()) {
      const Result<bool> caught_up = record->Refresh();
      if (!caught_up.ok()) return caught_up.error();
    }
    GPULEASE_RETURN_IF_ERROR(Publication::Attach(*record, nullptr));
    return record;
  }
  return MakeError(Code::kAborted, Reason::kUnspecified,
                   "the lease is being closed by another thread again and again");
}

}  // namespace

Result<std::vector<std::shared_ptr<LeaseRecord>>> AllocateRecords(
    const std::shared_ptr<Session>& session, std::span<const AllocateOptions> options,
    std::chrono::milliseconds wait, bool loading) {
  auto pending = PendingRecord::Request(session, options, wait, loading);
  if (!pending.ok()) return std::move(pending).error();
  // The daemon ends the wait; should it not, it is ended here.
  auto records = (*pending)->Wait(wait + session->options().call_timeout);
  if (records.ok() && records->empty()) {
    return MakeError(Code::kDeadlineExceeded, Reason::kWaitOver,
                     "the memory did not become free within the wait");
  }
  return records;
}

Result<std::shared_ptr<LeaseRecord>> OpenRecord(const std::shared_ptr<Session>& session,
                                                wire::OpenRequest request, Access access) {
  request.access = AccessOf(access);
  return TakeRecord<wire::OpenMethod>(session, request, false);
}

Result<std::shared_ptr<LeaseRecord>> ClaimRecord(const std::shared_ptr<Session>& session,
                                                 const wire::ClaimRequest& request) {
  return TakeRecord<wire::ClaimMethod>(session, request, true);
}

}  // namespace gpulease
