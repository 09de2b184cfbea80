// SPDX-License-Identifier: Apache-2.0
#include "client/bench/bench.h"

#include <stdexcept>

#include "client/playground/interruption.h"

namespace gpulease::bench {

bool Rounds::Next() {
  playground::ThrowIfInterrupted();
  const auto now = std::chrono::steady_clock::now();
  if (done_ == limits_.warm_up) start_ = now;
  if (done_ > limits_.warm_up && now - start_ > limits_.time) return false;
  if (done_ == limits_.warm_up + limits_.rounds) return false;
  ++done_;
  return true;
}

ClientOptions OptionsOf(const std::string& runtime_dir, const std::string& program) {
  ClientOptions options;
  options.runtime_dir = runtime_dir;
  options.program = program;
  return options;
}

playground::Worker StartWorker(const Bench& bench, const std::string& role) {
  std::vector<std::string> arguments = {"--worker",        role,    "--runtime-dir",
                                        bench.runtime_dir, "--gpu", bench.gpu.uuid};
  if (!bench.simulated_directory.empty()) {
    arguments.insert(arguments.end(), {"--simulated-directory", bench.simulated_directory});
  }
  if (!bench.grpc_socket.empty()) {
    arguments.insert(arguments.end(), {"--grpc-socket", bench.grpc_socket});
  }
  return playground::Worker(role, arguments);
}

AllocateOptions DeviceMemory(const Bench& bench, std::uint64_t size) {
  AllocateOptions options;
  options.size_bytes = size;
  options.gpu_uuid = bench.gpu.uuid;
  options.wait = std::chrono::seconds(10);
  return options;
}

std::uint64_t FreeBytes(Client& client, const Bench& bench) {
  for (const GpuStatus& gpu : client.Node().gpus) {
    if (gpu.uuid == bench.gpu.uuid) return gpu.free_bytes;
  }
  throw std::runtime_error(bench.gpu.uuid + " is not there any more");
}

}  // namespace gpulease::bench
