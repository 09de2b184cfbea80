// SPDX-License-Identifier: Apache-2.0
//
// The SDK's version, as it introduces itself.
#pragma once

namespace gpulease {

inline constexpr char kVersion[] = GPULEASE_VERSION;

}  // namespace gpulease
