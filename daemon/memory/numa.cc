// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/numa.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "daemon/memory/cgroup_room.h"

namespace gpulease::memory {
namespace {

namespace fs = std::filesystem;

constexpr char kNodes[] = "/sys/devices/system/node";

std::string NodePath(std::int32_t node) {
  return std::string(kNodes) + "/node" + std::to_string(node);
}

// The value of "… key:  123 kB" in a meminfo file, in bytes.
std::optional<Bytes> Meminfo(const std::string& path, const std::string& key) {
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    const std::size_t at = line.find(key + ":");
    if (at == std::string::npos || (at != 0 && line[at - 1] != ' ')) continue;
    std::istringstream value(line.substr(at + key.size() + 1));
    Bytes kib = 0;
    if (value >> kib) return kib * kKiB;
  }
  return std::nullopt;
}

std::optional<Bytes> ReadNumber(const std::string& path) {
  std::ifstream stream(path);
  Bytes value = 0;
  if (!(stream >> value)) return std::nullopt;
  return value;
}

}  // namespace

std::vector<NumaNode> NumaNodes() {
  std::vector<NumaNode> nodes;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(kNodes, error)) {
    const std::string name = entry.path().filename();
    std::int32_t number = 0;
    if (!name.starts_with("node")) continue;
    const auto [end, bad] = std::from_chars(name.data() + 4, name.data() + name.size(), number);
    if (bad != std::errc() || end != name.data() + name.size()) continue;
    const std::optional<Bytes> total = Meminfo(entry.path() / "meminfo", "MemTotal");
    if (total && *total > 0) nodes.push_back({number, *total});
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.number < b.number; });
  // With one node or none the whole machine's number is the better one: it follows memory that is
  // added.
  const Bytes machine = Meminfo("/proc/meminfo", "MemTotal").value_or(0);
  if (nodes.empty()) nodes.push_back({0, machine});
  if (nodes.size() == 1) nodes[0].total = std::max(nodes[0].total, machine);
  return nodes;
}

Bytes AvailableOnNode(std::int32_t node) {
  const Bytes machine = Meminfo("/proc/meminfo", "MemAvailable").value_or(0);
  Bytes on_node = machine;
  if (NumaNodes().size() > 1) {
    // The kernel has no MemAvailable for a node: free pages, and file pages that nobody used
    // lately.
    on_node = Meminfo(NodePath(node) + "/meminfo", "MemFree").value_or(0) +
              Meminfo(NodePath(node) + "/meminfo", "Inactive(file)").value_or(0);
  }
  return std::min({machine, on_node, CgroupRoom()});
}

bool HasSwap() { return Meminfo("/proc/meminfo", "SwapTotal").value_or(1) > 0; }

Bytes FreeHugePages(std::int32_t node) {
  const std::string pool = "/hugepages/hugepages-2048kB/free_hugepages";
  std::optional<Bytes> pages = ReadNumber(NodePath(node) + pool);
  if (!pages) pages = ReadNumber("/sys/kernel/mm" + pool);
  return pages.value_or(0) * 2 * kMiB;
}

}  // namespace gpulease::memory
