// SPDX-License-Identifier: Apache-2.0
//
// Options: what the settings, the machine and the limits of the process mean for each part.
#pragma once

#include "daemon/broker/broker.h"
#include "daemon/peers/reception.h"
#include "daemon/rpc/node_service.h"
#include "daemon/settings/settings.h"
#include "daemon/startup/descriptor_budget.h"
#include "daemon/startup/machine.h"

namespace gpulease::startup {

ledger::Limits LimitsOf(const settings::Settings& settings, const DescriptorBudget& budget);

// Of a pool with this granularity.
Bytes LargestChunk(const settings::Settings& settings, Bytes granularity);
std::uint32_t ConnectionsPerUser(const settings::Settings& settings);

// Without tenant_of, is_administrator and report.
broker::Options BrokerOptions(const settings::Settings& settings, const DescriptorBudget& budget,
                              const Machine& machine);

// Without `instance`.
peers::Reception::Options ReceptionOptions(const settings::Settings& settings,
                                           const DescriptorBudget& budget, const Machine& machine);

rpc::NodeFacts FactsOf(const DescriptorBudget& budget, const Machine& machine);

}  // namespace gpulease::startup
