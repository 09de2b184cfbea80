// SPDX-License-Identifier: Apache-2.0
//
// The SDK's codec: messages of the API as plain structs, and the two functions that turn them into
// bytes and back. The structs are made from proto/ (generator.cc).
//
// Invariant: whatever the bytes are, Decode() answers, and reads nothing outside them.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulease::wire {

// Decodes by `merge`, and makes an Error of what it throws.
Status Guard(std::string_view bytes, void* message, void (*merge)(void*, std::string_view));

// Errors: kInternal   the bytes are no such message.
template <typename Message>
Result<Message> Decode(std::string_view bytes) {
  Message message;
  GPULEASE_RETURN_IF_ERROR(Guard(bytes, &message, [](void* to, std::string_view from) {
    static_cast<Message*>(to)->Merge(from);
  }));
  return message;
}

template <typename Message>
std::string Encode(const Message& message) {
  std::string bytes;
  message.Append(bytes);
  return bytes;
}

}  // namespace gpulease::wire
