// SPDX-License-Identifier: Apache-2.0
//
// Between the API's messages and the broker's types: requests are checked here, field by field,
// before anything else looks at them.
#pragma once

#include <grpcpp/support/status.h>

#include "base/result.h"
#include "daemon/broker/broker.h"
#include "daemon/rpc/user_names.h"
#include "gpulease/v1/lease.pb.h"
#include "gpulease/v1/node.pb.h"

namespace gpulease::rpc {

// The one place where an Error becomes a grpc::Status, with its ErrorDetail.
grpc::Status ToGrpc(const Error& error);

// Errors: kInvalidArgument/kBadField, which name the field ("specs[2].name: …");
// kNotFound/kNoSuchGpu.
Result<ledger::AllocateCommand> ToCommand(const v1::AllocateRequest& request,
                                          const peers::Peer& peer, const broker::Broker& broker);
Result<ledger::ResizeCommand> ToCommand(const v1::ResizeRequest& request);
Result<ledger::ResumeCommand> ToCommand(const v1::ResumeRequest& request);
Result<ledger::Access> ToAccess(v1::Access access);

// Who a name is whose: "weights" is the caller's, "alice/weights" alice's of the caller's realm,
// "alice@REALM/weights" that of another, "alice@/weights" of the machine.
struct NamedLease {
  ledger::UserId owner = 0;
  std::string name;
};
// Errors: kInvalidArgument/kBadField; kPermissionDenied/kNotOpenable when there is no such user.
Result<NamedLease> ToNamedLease(const std::string& text, const peers::Peer& peer, UserNames& users);

// Errors: kInvalidArgument/kBadField, which name the entry and the field.
// `size` is the lease's.
Result<std::shared_ptr<const std::string>> ToDirectory(const v1::Directory& directory, Bytes size);
Status CheckContentTag(const std::string& tag);

// The id that a page starts behind. Errors: kInvalidArgument/kBadField.
Result<std::uint64_t> ToPageStart(const std::string& token);
std::size_t ToPageSize(std::uint32_t asked);

void ToProto(const broker::LeaseView& view, UserNames& users, v1::Lease* out);
void ToProto(const broker::Grant& grant, UserNames& users, v1::AllocateResponse* out);
void ToProto(const broker::ResizeView& view, UserNames& users, v1::ResizeResponse* out);
void ToProto(const broker::ResizeView& view, UserNames& users, v1::SuspendResponse* out);
void ToProto(const broker::ResizeView& view, UserNames& users, v1::ResumeResponse* out);
void ToProto(const broker::NodeView& view, v1::GetNodeResponse* out);
void ToProto(const broker::BudgetView& view, v1::GetBudgetResponse* out);
void ToProto(const ledger::Session& session, UserNames& users, v1::Session* out);
void ToProto(const broker::Event& event, v1::Event* out);
v1::LeaseState ToProto(ledger::State state, bool quarantined);

}  // namespace gpulease::rpc
