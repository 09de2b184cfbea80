// SPDX-License-Identifier: Apache-2.0
#include "daemon/state/entry.h"

#include <algorithm>
#include <iterator>

#include "base/descriptor_channel.h"

namespace gpulease::keeper {

Status SendEntry(
    const Outgoing& entry, std::uint64_t& sequence,
    const std::function<Status(std::span<const std::byte>, std::span<const int>)>& send) {
  const std::size_t of_bytes = (entry.record.size() + kMaxPartBytes - 1) / kMaxPartBytes;
  const std::size_t of_descriptors =
      (entry.descriptors.size() + kMaxDescriptorsPerMessage - 1) / kMaxDescriptorsPerMessage;
  const std::size_t parts = std::max<std::size_t>({of_bytes, of_descriptors, 1});
  if (parts > kMaxParts) {
    return MakeError(Code::kInvalidArgument, Reason::kUnspecified,
                     "an entry of " + std::to_string(parts) + " parts is too large to be kept");
  }
  std::vector<std::byte> message;
  for (std::size_t i = 0; i < parts; ++i) {
    const std::string_view bytes =
        i < of_bytes ? entry.record.substr(i * kMaxPartBytes, kMaxPartBytes) : std::string_view();
    std::span<const int> descriptors;
    if (i < of_descriptors) {
      const std::size_t first = i * kMaxDescriptorsPerMessage;
      descriptors = entry.descriptors.subspan(
          first, std::min(kMaxDescriptorsPerMessage, entry.descriptors.size() - first));
    }
    Part part{};
    part.header = {.kind = entry.kind};
    part.key = entry.key;
    part.sequence = ++sequence;
    part.part = static_cast<std::uint32_t>(i);
    part.parts = static_cast<std::uint32_t>(parts);
    part.bytes = static_cast<std::uint32_t>(bytes.size());
    part.descriptors = static_cast<std::uint32_t>(descriptors.size());
    part.same_descriptors = entry.same_descriptors ? 1 : 0;
    message.resize(sizeof part + bytes.size());
    std::memcpy(message.data(), &part, sizeof part);
    if (!bytes.empty()) std::memcpy(message.data() + sizeof part, bytes.data(), bytes.size());
    GPULEASE_RETURN_IF_ERROR(send(message, descriptors));
  }
  return {};
}

void Assembly::Clear() {
  next_ = 0;
  entry_ = {};
}

Result<std::optional<Assembly::Complete>> Assembly::Add(const Part& part,
                                                        std::span<const std::byte> record,
                                                        std::vector<UniqueFd> descriptors) {
  const bool first = part.part == 0;
  const bool follows = part.part == next_ && part.key == key_ && part.parts == parts_ &&
                       (part.same_descriptors == 1) == same_descriptors_;
  if (first ? next_ != 0 : !follows) {
    return MakeError(Code::kInvalidArgument, Reason::kUnspecified,
                     "part " + std::to_string(part.part) + " of " + std::to_string(part.parts) +
                         " of entry " + std::to_string(part.key) + " comes out of turn");
  }
  if (first) {
    key_ = part.key;
    parts_ = part.parts;
    same_descriptors_ = part.same_descriptors == 1;
    entry_ = {};
  }
  next_ = part.part + 1;
  entry_.record.append(reinterpret_cast<const char*>(record.data()), record.size());
  std::move(descriptors.begin(), descriptors.end(), std::back_inserter(entry_.descriptors));
  if (next_ < parts_) return std::optional<Complete>();
  Complete complete{key_, same_descriptors_, std::move(entry_)};
  Clear();
  return std::optional<Complete>(std::move(complete));
}

}  // namespace gpulease::keeper
