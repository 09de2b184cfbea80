// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/codec/codec.h"

#include <protozero/exception.hpp>

#include "client/sdk/codec/fields.h"

namespace gpulease::wire {

Status Guard(std::string_view bytes, void* message, void (*merge)(void*, std::string_view)) {
  try {
    merge(message, bytes);
  } catch (const protozero::exception& exception) {
    return MakeError(Code::kInternal, Reason::kUnspecified,
                     std::string("the daemon's message cannot be read: ") + exception.what());
  }
  return {};
}

bool ValidUtf8(std::string_view text) {
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = at + text.size();
  while (at < end) {
    const unsigned char lead = *at++;
    if (lead < 0x80) continue;
    int more = 0;
    unsigned char low = 0x80;
    unsigned char high = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf) {
      more = 1;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      more = 2;
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      more = 3;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    } else {
      return false;
    }
    for (; more > 0; --more) {
      if (at == end || *at < low || *at > high) return false;
      low = 0x80;
      high = 0xbf;
      ++at;
    }
  }
  return true;
}

void MergeEntry(protozero::pbf_reader& reader, std::map<std::string, std::string>& map) {
  protozero::pbf_reader entry = reader.get_message();
  std::string key;
  std::string value;
  while (entry.next()) {
    switch (entry.tag_and_type()) {
      case protozero::tag_and_type(1, protozero::pbf_wire_type::length_delimited):
        key = Text(entry);
        break;
      case protozero::tag_and_type(2, protozero::pbf_wire_type::length_delimited):
        value = Text(entry);
        break;
      default:
        entry.skip();
    }
  }
  map.insert_or_assign(std::move(key), std::move(value));
}

}  // namespace gpulease::wire
