// SPDX-License-Identifier: Apache-2.0
//
// Who may keep released memory in place: living processes that have GPU memory open or mapped, a
// dead client's forked children among them. A guess from /proc for an administrator's eyes; nothing
// is decided by it.
#pragma once

#include <vector>

#include "daemon/broker/view.h"

namespace gpulease::broker {

// Reads /proc: milliseconds to seconds on a large machine, so never on a request's path. At
// most 16.
std::vector<Suspect> FindSuspects(bool simulated);

}  // namespace gpulease::broker
