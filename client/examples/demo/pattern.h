// SPDX-License-Identifier: Apache-2.0
//
// Pattern: bytes by which a buffer's contents are known: each process writes others, and no part of
// a buffer looks like another part of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpulease::demo {

// Sizes are multiples of 8.
void FillPattern(std::span<std::byte> bytes, int origin);
// How many bytes are not as FillPattern wrote them.
std::uint64_t CountWrongBytes(std::span<const std::byte> bytes, int origin);

}  // namespace gpulease::demo
