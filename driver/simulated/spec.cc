// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "driver/simulated/simulated.h"

namespace gpulease::simulated {
namespace {

Error BadSpec(std::string_view text, const std::string& what) {
  return MakeError(Code::kInvalidArgument, Reason::kBadField,
                   "simulated GPUs \"" + std::string(text) + "\": " + what +
                       "; write COUNTxSIZE, as in \"2x16GiB\" or \"1x8GiB,1x24GiB\"");
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// "16GiB" for whole units, which is what ParseSpec reads back.
std::string ExactSize(Bytes bytes) {
  if (bytes % kGiB == 0) return std::to_string(bytes / kGiB) + "GiB";
  return std::to_string(bytes / kMiB) + "MiB";
}

}  // namespace

Result<NodeSpec> ParseSpec(std::string_view text) {
  NodeSpec spec;
  std::string_view rest = text;
  for (;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = Trimmed(rest.substr(0, comma));
    std::string_view size_text = part;
    std::uint32_t count = 1;
    if (const std::size_t x = part.find('x'); x != std::string_view::npos) {
      const std::string_view count_text = part.substr(0, x);
      const auto [end, error] =
          std::from_chars(count_text.data(), count_text.data() + count_text.size(), count);
      if (error != std::errc() || end != count_text.data() + count_text.size() || count == 0) {
        return BadSpec(text, "\"" + std::string(count_text) + "\" is no number of GPUs");
      }
      size_text = part.substr(x + 1);
    }
    const std::optional<Bytes> size = ParseBytes(size_text);
    if (!size.has_value()) {
      return BadSpec(text, "\"" + std::string(size_text) + "\" is no size");
    }
    if (*size == 0 || *size % kGranularity != 0) {
      return BadSpec(text, FormatBytes(*size) + " is not a multiple of " +
                               FormatBytes(kGranularity) + ", or zero");
    }
    if (*size > kMaxCapacity) {
      return BadSpec(text, FormatBytes(*size) + " is more than the " + FormatBytes(kMaxCapacity) +
                               " that a simulated GPU can have");
    }
    if (count > kMaxGpus - spec.gpus.size()) {
      return BadSpec(text, "more than " + std::to_string(kMaxGpus) + " GPUs");
    }
    spec.gpus.insert(spec.gpus.end(), count, *size);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return spec;
}

std::string FormatSpec(const NodeSpec& spec) {
  std::string text;
  for (std::size_t i = 0; i < spec.gpus.size();) {
    std::size_t end = i;
    while (end < spec.gpus.size() && spec.gpus[end] == spec.gpus[i]) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(end - i) + "x" + ExactSize(spec.gpus[i]);
    i = end;
  }
  return text;
}

}  // namespace gpulease::simulated
