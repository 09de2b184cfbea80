// SPDX-License-Identifier: Apache-2.0
//
// What the generated structs share: views and text out of a protozero reader, messages into a
// writer. Readers throw protozero's exceptions, which codec.h's Decode() catches.
//
// Invariant: a string that was read is UTF-8, as Protocol Buffers demand of it.
#pragma once

#include <map>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <string>
#include <string_view>

namespace gpulease::wire {

// Whether it is UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool ValidUtf8(std::string_view text);

struct InvalidUtf8 : protozero::exception {
  const char* what() const noexcept override { return "a string is not UTF-8"; }
};

inline std::string_view View(protozero::pbf_reader& reader) {
  const protozero::data_view view = reader.get_view();
  return {view.data(), view.size()};
}

inline std::string Text(protozero::pbf_reader& reader) {
  const std::string_view view = View(reader);
  if (!ValidUtf8(view)) throw InvalidUtf8();
  return std::string(view);
}

// One entry of a map<string, string>.
void MergeEntry(protozero::pbf_reader& reader, std::map<std::string, std::string>& map);

// Appends `message` as field `number`. `writer` writes to `out`. An empty message is there too:
// protozero drops a part that has no bytes.
template <typename Message>
void AppendMessage(protozero::pbf_writer& writer, std::string& out, protozero::pbf_tag_type number,
                   const Message& message) {
  const std::size_t before = out.size();
  {
    protozero::pbf_writer part(writer, number);
    message.Append(out);
  }
  if (out.size() == before) writer.add_message(number, std::string());
}

}  // namespace gpulease::wire
