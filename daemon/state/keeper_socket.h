// SPDX-License-Identifier: Apache-2.0
//
// What both ends of keeper.sock do with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/result.h"

namespace gpulease::keeper {

// Whether `events` (POLLIN, POLLOUT) come by `until`.
bool WaitFor(int fd, short events, Time until);

// Sends one message; waits, up to `bound`, while the other side is behind with reading.
// Errors: those of SendMessage.
Status SendPatiently(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                     Duration bound);

// How many files this process may have open.
std::uint32_t DescriptorLimit();

}  // namespace gpulease::keeper
