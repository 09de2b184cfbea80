// SPDX-License-Identifier: Apache-2.0
//
// What these tests say of replies and of the node, as GoogleTest assertions.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/e2e/raw_client.h"

namespace gpulease::e2e {

// EXPECT_TRUE(Worked(client.Allocate(…)));
template <typename Message>
::testing::AssertionResult Worked(const Reply<Message>& reply) {
  if (reply.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << Describe(reply.status, reply.detail);
}

// EXPECT_TRUE(Refused(client.Open(…), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
template <typename Message>
::testing::AssertionResult Refused(const Reply<Message>& reply, grpc::StatusCode code,
                                   v1::Reason reason) {
  if (reply.status.error_code() == code && reply.has_detail && reply.detail.reason() == reason &&
      !reply.status.error_message().empty()) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "expected " << CodeName(static_cast<Code>(code)) << " " << v1::Reason_Name(reason)
         << ", got " << Describe(reply.status, reply.detail)
         << (reply.has_detail ? "" : " (no ErrorDetail)");
}

// Every byte of a GPU or NUMA node is in one column.
inline ::testing::AssertionResult AddsUp(const v1::MemoryUse& use) {
  const std::uint64_t sum = use.leased_bytes() + use.offered_bytes() + use.releasing_bytes() +
                            use.unconfirmed_bytes() + use.quarantined_bytes() +
                            use.outside_bytes() + use.free_bytes();
  if (sum == use.total_bytes() + use.overcommitted_bytes()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "the columns do not add up: " << use.ShortDebugString();
}

inline ::testing::AssertionResult AddsUp(const v1::GetNodeResponse& node) {
  for (const v1::Gpu& gpu : node.gpus()) {
    if (::testing::AssertionResult result = AddsUp(gpu.memory()); !result) return result;
  }
  for (const v1::HostMemory& host : node.host()) {
    if (::testing::AssertionResult result = AddsUp(host.memory()); !result) return result;
  }
  return ::testing::AssertionSuccess();
}

// All memory of the node is free again.
inline bool IsAllFree(const v1::GetNodeResponse& node) {
  for (const v1::Gpu& gpu : node.gpus()) {
    if (gpu.memory().free_bytes() != gpu.memory().total_bytes()) return false;
  }
  for (const v1::HostMemory& host : node.host()) {
    if (host.memory().free_bytes() != host.memory().total_bytes()) return false;
  }
  return node.lease_count() == 0;
}

}  // namespace gpulease::e2e
