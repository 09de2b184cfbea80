// SPDX-License-Identifier: Apache-2.0
//
// HandOver: one request for memory, from its call to its descriptors. When it does not come to its
// end, whatever the daemon gave for it goes back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "client/sdk/src/lease_record.h"
#include "client/sdk/src/session/session.h"

namespace gpulease {

class HandOver {
 public:
  // `owner`: what goes back is released, else closed.
  HandOver(std::shared_ptr<Session> session, bool owner)
      : session_(std::move(session)), tag_(session_->NextTag()), owner_(owner) {}
  ~HandOver() { GiveBack(); }
  HandOver(const HandOver&) = delete;
  HandOver& operator=(const HandOver&) = delete;

  const std::shared_ptr<Session>& session() const { return session_; }
  std::uint64_t epoch() const { return link_.epoch; }

  // Calls `Method` with session and tag filled in.
  template <typename Method>
  Result<typename Method::Response> Call(typename Method::Request request, CallTerms terms) {
    terms.hand_over = true;
    return session_->Call<Method>(std::move(request), terms,
                                  [this](typename Method::Request& filled, const Link& link) {
                                    filled.session_id = link.session_id;
                                    filled.push_tag = tag_;
                                    link.handles->Expect(tag_);
                                    link_ = link;
                                  });
  }

  // The daemon has these leases for us, so that they go back when the hand-over does not end.
  void Promise(std::span<const wire::Lease> leases);
  // Their descriptors, checked against what the leases say. The hand-over has ended then.
  Result<std::vector<HandedLease>> Collect(std::span<const wire::Lease> leases);
  // Of one lease that the session holds, the `count` chunks that were pushed.
  Result<std::vector<LocalFd>> CollectSome(std::uint64_t lease_id, std::size_t count);
  void GiveBack();

 private:
  const std::shared_ptr<Session> session_;
  const std::uint64_t tag_;
  const bool owner_;
  Link link_;  // of the last call
  std::vector<std::uint64_t> promised_;
};

}  // namespace gpulease
