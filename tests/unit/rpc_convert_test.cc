// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "daemon/rpc/convert.h"
#include "gpulease/v1/error.pb.h"

namespace gpulease::rpc {
namespace {

TEST(ConvertTest, AnErrorKeepsAllThatItSays) {
  Error error = MakeError(Code::kUnavailable, Reason::kMemoryShort, "asked 2, has 1");
  error.requested_bytes = 2;
  error.available_bytes = 1;
  error.limit_bytes = 3;
  error.blockers = {{.lease_id = 4, .pid = 5, .uid = 6, .size_bytes = 7}};
  const grpc::Status status = ToGrpc(error);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "asked 2, has 1");
  v1::ErrorStatus envelope;
  ASSERT_TRUE(envelope.ParseFromString(status.error_details()));
  EXPECT_EQ(envelope.code(), 14);
  EXPECT_EQ(envelope.message(), "asked 2, has 1");
  v1::ErrorDetail detail;
  ASSERT_EQ(envelope.details_size(), 1);
  ASSERT_TRUE(envelope.details(0).UnpackTo(&detail));
  EXPECT_EQ(detail.reason(), v1::REASON_MEMORY_SHORT);
  EXPECT_EQ(detail.requested_bytes(), 2u);
  EXPECT_EQ(detail.available_bytes(), 1u);
  EXPECT_EQ(detail.limit_bytes(), 3u);
  ASSERT_EQ(detail.blockers_size(), 1);
  EXPECT_EQ(detail.blockers(0).lease_id(), 4u);
  EXPECT_EQ(detail.blockers(0).pid(), 5);
  EXPECT_EQ(detail.blockers(0).uid(), 6u);
  EXPECT_EQ(detail.blockers(0).size_bytes(), 7u);
}

TEST(ConvertTest, ReasonsHaveTheNumbersOfTheApi) {
  const std::pair<Reason, v1::Reason> all[] = {
      {Reason::kUnspecified, v1::REASON_UNSPECIFIED},
      {Reason::kBadField, v1::REASON_BAD_FIELD},
      {Reason::kTooLarge, v1::REASON_TOO_LARGE},
      {Reason::kTenantLimit, v1::REASON_TENANT_LIMIT},
      {Reason::kMemoryShort, v1::REASON_MEMORY_SHORT},
      {Reason::kDescriptorLimit, v1::REASON_DESCRIPTOR_LIMIT},
      {Reason::kSessionLimit, v1::REASON_SESSION_LIMIT},
      {Reason::kNoSuchGpu, v1::REASON_NO_SUCH_GPU},
      {Reason::kGpuUnavailable, v1::REASON_GPU_UNAVAILABLE},
      {Reason::kNameTaken, v1::REASON_NAME_TAKEN},
      {Reason::kNotOpenable, v1::REASON_NOT_OPENABLE},
      {Reason::kSessionEnded, v1::REASON_SESSION_ENDED},
      {Reason::kStopping, v1::REASON_STOPPING},
      {Reason::kWaitOver, v1::REASON_WAIT_OVER},
      {Reason::kHandOver, v1::REASON_HAND_OVER},
      {Reason::kDriver, v1::REASON_DRIVER},
      {Reason::kUnsupported, v1::REASON_UNSUPPORTED},
      {Reason::kHostMemoryShort, v1::REASON_HOST_MEMORY_SHORT},
      {Reason::kDriverMemoryShort, v1::REASON_DRIVER_MEMORY_SHORT},
      {Reason::kDeviceLost, v1::REASON_DEVICE_LOST},
      {Reason::kNotSealed, v1::REASON_NOT_SEALED},
      {Reason::kSealed, v1::REASON_SEALED},
      {Reason::kPeerGone, v1::REASON_PEER_GONE},
      {Reason::kSuspended, v1::REASON_SUSPENDED},
      {Reason::kNotPartaking, v1::REASON_NOT_PARTAKING},
  };
  for (const auto& [mine, theirs] : all) EXPECT_EQ(static_cast<int>(mine), theirs);
  EXPECT_EQ(std::size(all), static_cast<std::size_t>(v1::Reason_descriptor()->value_count()));
}

TEST(ConvertTest, APageStartsBehindANumberAndNothingElse) {
  EXPECT_EQ(*ToPageStart(""), 0u);
  EXPECT_EQ(*ToPageStart("17"), 17u);
  for (const char* token : {"-1", "1 ", "x", "99999999999999999999"}) {
    EXPECT_FALSE(ToPageStart(token).ok()) << token;
  }
  EXPECT_EQ(ToPageSize(0), 1000u);
  EXPECT_EQ(ToPageSize(7), 7u);
  EXPECT_EQ(ToPageSize(~0u), 1000u);
}

TEST(ConvertTest, ANameIsTheCallersOrAnothersByNameOrNumber) {
  UserNames users;
  peers::Peer peer;
  peer.user.uid = 4711;
  const auto mine = ToNamedLease("weights", peer, users);
  ASSERT_TRUE(mine.ok());
  EXPECT_EQ(mine->owner, ledger::UserId(4711));
  EXPECT_EQ(mine->name, "weights");
  EXPECT_EQ(ToNamedLease("root/weights", peer, users)->owner, ledger::UserId(0));
  EXPECT_EQ(ToNamedLease("1234/weights", peer, users)->owner, ledger::UserId(1234));
  for (const char* name : {"", "a/b/c", "root/", "a b", "/", "@", "0@/", "0@/a/b c"}) {
    const auto bad = ToNamedLease(name, peer, users);
    ASSERT_FALSE(bad.ok()) << name;
    EXPECT_EQ(bad.error().reason, Reason::kBadField) << name;
  }
  EXPECT_EQ(ToNamedLease("no-such-user/x", peer, users).error().code, Code::kPermissionDenied);
}

TEST(ConvertTest, ANameIsOfAUserOfTheCallersRealmUnlessItNamesAnother) {
  UserNames users;
  peers::Peer peer;
  peer.user.uid = 0;
  peer.user.realm = "/system.slice/docker-a.scope";
  EXPECT_EQ(ToNamedLease("w", peer, users)->owner, ledger::UserId(0, peer.user.realm));
  EXPECT_EQ(ToNamedLease("7/w", peer, users)->owner, ledger::UserId(7, peer.user.realm));
  EXPECT_EQ(ToNamedLease("7@/w", peer, users)->owner, ledger::UserId(7));
  EXPECT_EQ(ToNamedLease("root@/a/b.scope/w", peer, users)->owner, ledger::UserId(0, "/a/b.scope"));
  EXPECT_EQ(ToNamedLease("0@team/w", peer, users)->owner, ledger::UserId(0, "team"));
  EXPECT_FALSE(ToNamedLease("0@" + std::string(5000, 'x') + "/w", peer, users).ok());
}

TEST(ConvertTest, QuarantineIsShownFromTheEndOfRightsOn) {
  EXPECT_EQ(ToProto(ledger::State::kMaking, false), v1::LEASE_STATE_OFFERED);
  EXPECT_EQ(ToProto(ledger::State::kDestroying, false), v1::LEASE_STATE_RELEASING);
  EXPECT_EQ(ToProto(ledger::State::kReleasing, true), v1::LEASE_STATE_QUARANTINED);
  EXPECT_EQ(ToProto(ledger::State::kUnconfirmed, true), v1::LEASE_STATE_QUARANTINED);
  EXPECT_EQ(ToProto(ledger::State::kUnconfirmed, false), v1::LEASE_STATE_UNCONFIRMED);
  EXPECT_EQ(ToProto(ledger::State::kLeased, true), v1::LEASE_STATE_LEASED);
}

}  // namespace
}  // namespace gpulease::rpc
