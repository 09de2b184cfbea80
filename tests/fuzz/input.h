// SPDX-License-Identifier: Apache-2.0
//
// Input: the bytes that a fuzzer made up, taken apart from the front. Where they end, zeros follow,
// so that every input is a whole one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace gpulease::fuzz {

class Input {
 public:
  Input(const std::uint8_t* bytes, std::size_t size)
      : rest_(reinterpret_cast<const char*>(bytes), size) {}

  bool empty() const { return rest_.empty(); }
  std::uint8_t Byte() { return Number<std::uint8_t>(); }
  bool Flag() { return (Byte() & 1) != 0; }
  template <typename T>
  T Number() {
    T value{};
    const std::string_view bytes = Take(sizeof value);
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // 0 to `end` - 1; as few bytes as that needs.
  std::uint64_t Below(std::uint64_t end) {
    if (end <= 1) return 0;
    if (end <= 256) return Byte() % end;
    if (end <= 65536) return Number<std::uint16_t>() % end;
    return Number<std::uint64_t>() % end;
  }
  // So many bytes, or what is left.
  std::string_view Take(std::size_t most) {
    const std::string_view taken = rest_.substr(0, most);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  // A length in one byte, and so many.
  std::string_view Part() { return Take(Byte()); }
  // A length in two bytes, and so many.
  std::string_view LongPart() { return Take(Number<std::uint16_t>()); }
  std::string_view Rest() { return Take(rest_.size()); }

 private:
  std::string_view rest_;
};

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace gpulease::fuzz
