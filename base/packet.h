// SPDX-License-Identifier: Apache-2.0
//
// Fixed structs as packets between processes of one machine, and the texts in them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace gpulease {

// The packet as T, or nothing when it has another size.
template <typename T>
std::optional<T> ReadPacket(std::span<const std::byte> bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() != sizeof(T)) return std::nullopt;
  T packet;
  std::memcpy(&packet, bytes.data(), sizeof packet);
  return packet;
}

template <typename T>
std::span<const std::byte> BytesOf(const T& packet) {
  return std::as_bytes(std::span<const T, 1>(&packet, 1));
}

// As much of `from` as fits, NUL-terminated.
template <std::size_t N>
void CopyText(char (&to)[N], std::string_view from) {
  const std::size_t size = std::min(from.size(), N - 1);
  std::memcpy(to, from.data(), size);
  to[size] = 0;
}

// Up to the first NUL, or all of it.
template <std::size_t N>
std::string TextOf(const char (&from)[N]) {
  return std::string(from, strnlen(from, N));
}

}  // namespace gpulease
