// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "client/sdk/src/exception.h"
#include "client/sdk/src/order/barrier_record.h"

namespace gpulease {
namespace {

BarrierRecord& Use(const std::shared_ptr<BarrierRecord>& record) {
  if (!record) {
    throw Exception(ErrorCode::kFailedPrecondition, ErrorReason::kUnspecified,
                    "this Barrier is empty: it was moved from, left or never joined");
  }
  return *record;
}

}  // namespace

inline namespace abi_v1 {

Barrier::Barrier() = default;

Barrier::Barrier(Client& client, const BarrierOptions& options) {
  if (!client.session_) {
    throw Exception(ErrorCode::kFailedPrecondition, ErrorReason::kUnspecified,
                    "this Client was moved from");
  }
  record_ = OrThrow(BarrierRecord::Join(client.session_, options));
}

Barrier::Barrier(Barrier&&) noexcept = default;
Barrier& Barrier::operator=(Barrier&&) noexcept = default;
Barrier::~Barrier() = default;

bool Barrier::Wait(std::chrono::milliseconds timeout) {
  return OrThrow(Use(record_).Wait(timeout));
}

bool Barrier::broken() const {
  OrThrow(Use(record_).ok());
  return record_->broken();
}

void Barrier::Leave() {
  OrThrow(Use(record_).ok());
  record_.reset();
}

const std::string& Barrier::name() const { return Use(record_).name(); }
unsigned Barrier::participants() const { return Use(record_).participants(); }
unsigned Barrier::index() const { return Use(record_).slot(); }
std::uint64_t Barrier::lease_id() const { return Use(record_).lease_id(); }

}  // namespace abi_v1
}  // namespace gpulease
