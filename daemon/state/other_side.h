// SPDX-License-Identifier: Apache-2.0
//
// Who is at the other end of keeper.sock. What passes there is everybody's memory, and the socket
// may lie in a directory that containers are given, whose root can take any uid; so daemon and
// keeper each look whether the other is of their own user and in their own PID namespace.
#pragma once

#include "base/result.h"

namespace gpulease::keeper {

// Errors: kPermissionDenied, with why it is not.
Status CheckOtherSide(int socket);

}  // namespace gpulease::keeper
