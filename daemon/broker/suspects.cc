// SPDX-License-Identifier: Apache-2.0
#include "daemon/broker/suspects.h"

#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace gpulease::broker {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMost = 16;

std::string ReadLine(const fs::path& path) {
  std::ifstream stream(path);
  std::string line;
  std::getline(stream, line);
  return line;
}

// A process names itself with any bytes.
std::string Text(std::string bytes) {
  for (char& c : bytes) {
    if (c < 0x20 || c == 0x7f) c = '?';
  }
  return bytes;
}

bool HasOpen(const fs::path& process, std::string_view what) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(process / "fd", error)) {
    if (fs::read_symlink(entry.path(), error).native().find(what) != std::string::npos) return true;
  }
  return false;
}

bool HasMapped(const fs::path& process, std::string_view what) {
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(what) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

std::vector<Suspect> FindSuspects(bool simulated) {
  const std::string_view what = simulated ? "memfd:gpulease-sim" : "/dev/nvidia";
  std::vector<Suspect> suspects;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    std::int32_t pid = 0;
    const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad != std::errc() || end != name.data() + name.size() || pid == getpid()) continue;
    const bool mapped = HasMapped(entry.path(), what);
    if (!mapped && !HasOpen(entry.path(), what)) continue;
    suspects.push_back({pid, Text(ReadLine(entry.path() / "comm")),
                        mapped ? "has GPU memory mapped" : "has GPU memory open"});
    if (suspects.size() == kMost) break;
  }
  return suspects;
}

}  // namespace gpulease::broker
