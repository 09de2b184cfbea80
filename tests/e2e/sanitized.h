// SPDX-License-Identifier: Apache-2.0
//
// Whether the programs under test are built with a sanitizer: its memory is not the program's.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define GPULEASE_SANITIZED 1
#endif
#endif

namespace gpulease::e2e {

#ifdef GPULEASE_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace gpulease::e2e
