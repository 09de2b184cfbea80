// SPDX-License-Identifier: Apache-2.0
#include "driver/simulated/process_state.h"

#include <pthread.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <mutex>
#include <string>

#include "driver/simulated/exports.h"

namespace gpulease::simulated {
namespace {

// The GPU that `name` of CUDA_VISIBLE_DEVICES names, the beginning of a UUID or a place in
// `present`; -1: none.
int NamedGpu(std::string_view name, const Node& node, const std::vector<int>& present) {
  if (name.substr(0, 4) == "GPU-") {
    int found = -1;
    for (const int gpu : present) {
      if (node.uuid_text(gpu).compare(0, name.size(), name) != 0) continue;
      if (found >= 0) return -1;
      found = gpu;
    }
    return found;
  }
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() && end == name.data() + name.size() && number < present.size()
             ? present[number]
             : -1;
}

// The GPUs that are present; with CUDA_VISIBLE_DEVICES those that it names, up to the first name
// that names nothing.
std::vector<int> VisibleGpus(const Node& node) {
  std::vector<int> present;
  for (int gpu = 0; gpu < node.gpu_count(); ++gpu) {
    if (node.present(gpu)) present.push_back(gpu);
  }
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) return present;
  std::vector<int> gpus;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const int found = NamedGpu(rest.substr(0, comma), node, present);
    if (found < 0) break;
    gpus.push_back(found);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return gpus;
}

}  // namespace

ProcessState::ProcessState() {
  for (int gpu = 0; gpu < kMaxGpus; ++gpu) contexts[static_cast<std::size_t>(gpu)].gpu = gpu;
  // A child inherits the memory and not the driver, as with the real one.
  pthread_atfork(nullptr, nullptr, [] {
    ProcessState& state = State();
    if (state.cuda_ready.load() || state.nvml_ready.load()) state.forked.store(true);
  });
}

ProcessState& State() {
  static ProcessState& state = *new ProcessState;
  return state;
}

int ProcessState::OrdinalOf(int gpu) const {
  for (std::size_t i = 0; i < visible.size(); ++i) {
    if (visible[i] == gpu) return static_cast<int>(i);
  }
  return -1;
}

void ProcessState::CountMapped(int gpu, Bytes size, bool more) {
  Bytes& sum = mapped[static_cast<std::size_t>(gpu)];
  sum = more ? sum + size : sum - size;
  const std::int32_t pid = getpid();
  for (ProcessRecord& record : node.load()->file->processes) {
    if (record.pid.load() == pid && record.gpu.load() == gpu) {
      record.used = sum;
      return;
    }
  }
}

}  // namespace gpulease::simulated

namespace gpulease {

const char* gpulease_simulated_use(const char* directory) {
  using simulated::State;
  thread_local std::string refusal;
  if (State().forked.load()) return "this process was forked from one that uses the driver";
  Result<simulated::Node> node = simulated::Node::Open(directory);
  if (!node.ok()) {
    refusal = node.error().message;
    return refusal.c_str();
  }
  simulated::ProcessState& state = State();
  const std::unique_lock lock(state.mutex);
  const simulated::NodeMapping* served = state.node.load();
  if (served != nullptr && served->file->node == node->id()) return nullptr;
  state.nodes.push_back(node->mapping());
  state.visible = simulated::VisibleGpus(*node);
  state.node.store(node->mapping().get());
  return nullptr;
}

}  // namespace gpulease
