// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/cgroup_room.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

namespace gpulease::memory {
namespace {

namespace fs = std::filesystem;

// The names of one version's files.
struct Version {
  std::vector<std::string> limits;
  std::string usage;
  std::string unused;  // in memory.stat: of files, and not in use
};
const Version kVersion1 = {
    {"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"};
const Version kVersion2 = {{"memory.max", "memory.high"}, "memory.current", "inactive_file"};

// "max" is no number: no limit.
std::optional<Bytes> ReadNumber(const fs::path& path) {
  std::ifstream stream(path);
  Bytes value = 0;
  if (!(stream >> value)) return std::nullopt;
  return value;
}

Bytes ReadStat(const fs::path& path, const std::string& key) {
  std::ifstream stream(path);
  Bytes value = 0;
  for (std::string name; stream >> name >> value;) {
    if (name == key) return value;
  }
  return 0;
}

Bytes RoomOf(const fs::path& folder, const Version& version) {
  Bytes limit = ~Bytes{0};
  for (const std::string& name : version.limits)
    limit = std::min(limit, ReadNumber(folder / name).value_or(limit));
  const std::optional<Bytes> usage = ReadNumber(folder / version.usage);
  if (limit == ~Bytes{0} || !usage) return ~Bytes{0};
  const Bytes used = *usage - std::min(*usage, ReadStat(folder / "memory.stat", version.unused));
  return limit > used ? limit - used : 0;
}

// A container may see its own cgroup as the root of all, under a name that is the machine's or "/":
// the folders above a name that is not there are looked at all the same.
Bytes RoomUpFrom(const fs::path& mount, const std::string& group, const Version& version) {
  Bytes room = RoomOf(mount, version);
  for (fs::path path = fs::path(group).relative_path(); !path.empty(); path = path.parent_path())
    room = std::min(room, RoomOf(mount / path, version));
  return room;
}

}  // namespace

Bytes CgroupRoom(const CgroupFiles& files) {
  Bytes room = ~Bytes{0};
  std::ifstream stream(files.membership);
  // "0::/system.slice/gpuleased.service", or of v1 "4:memory:/docker/1234".
  for (std::string line; std::getline(stream, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      room = std::min(room, RoomUpFrom(files.mount, group, kVersion2));
    } else if (controllers.find(",memory,") != std::string::npos) {
      room = std::min(room, RoomUpFrom(fs::path(files.mount) / "memory", group, kVersion1));
    }
  }
  return room;
}

}  // namespace gpulease::memory
