// SPDX-License-Identifier: Apache-2.0
//
// Views: copies of what the ledger holds, as callers are shown it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/ledger/ledger.h"
#include "driver/gpu_probe.h"

namespace gpulease::broker {

struct HolderView {
  ledger::Holding holding;
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  ledger::Realm realm;
  std::string program;
  bool owner = false;
};

struct LeaseView {
  ledger::Lease lease;
  std::string gpu_uuid;         // device leases that have a GPU
  std::int32_t numa_node = -1;  // host leases
  std::vector<HolderView> holders;
  std::uint32_t queue_position = 0;  // of its growth, where it grows
  std::vector<Blocker> blockers;
  Bytes target = 0;  // that it is about to have; 0: what it has
  // Of a lease with `ipc`, for who has it open.
  std::string ipc_handle;
  Bytes ipc_offset = 0;
};

// A lease after a call that changes its chunks.
struct ResizeView {
  LeaseView lease;  // without holders
  ledger::LeaseId growth;
  std::uint32_t queue_position = 0;
  std::vector<HolderView> waits_for;
  std::uint32_t open_chunks = 0;
};

struct Grant {
  std::vector<LeaseView> leases;  // without holders
  bool queued = false;
  std::uint32_t queue_position = 0;
};

enum class GpuState { kReady, kDraining, kDrained, kUnresponsive, kLost, kUnsupported, kMissing };

// A GPU that the daemon knows of and does not have.
struct AbsentGpu {
  std::string uuid;  // empty: not known
  GpuState state = GpuState::kMissing;
  std::string message;
};

struct Suspect {
  std::int32_t pid = 0;
  std::string program;
  std::string why;
};

struct GpuView {
  driver::GpuDescription description;
  GpuState state = GpuState::kReady;
  std::string message;
  ledger::PoolUse use;
  int utilization_percent = -1;
  std::vector<Suspect> suspects;
};

struct HostView {
  std::int32_t numa_node = 0;
  ledger::PoolUse use;
  Bytes free_huge_pages = 0;
};

struct PoolBudget {
  ledger::PoolKind kind = ledger::PoolKind::kDevice;
  std::string gpu_uuid;
  std::int32_t numa_node = -1;
  ledger::Budget budget;
};

struct BudgetView {
  std::string tenant;
  std::vector<PoolBudget> pools;
  Bytes lasting = 0;
  Bytes lasting_left = ~Bytes{0};
};

struct NodeView {
  std::vector<GpuView> gpus;
  std::vector<HostView> host;
  std::vector<ledger::TenantUse> tenants;
  std::size_t sessions = 0;
  std::size_t leases = 0;
  std::uint64_t chunks = 0;
  std::string message;  // why nobody is admitted
  bool keeper = false;  // connected
  std::size_t set_aside = 0;
};

}  // namespace gpulease::broker
