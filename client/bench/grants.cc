// SPDX-License-Identifier: Apache-2.0
//
// Grants: how many leases a second the daemon gives and takes back, and how long each client waits
// while others ask too.
#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>

#include "base/bytes.h"
#include "client/bench/bench.h"

namespace gpulease::bench {
namespace {

const std::string kSection = "grants";

// A worker's samples are too many for a line: they come as a file's descriptor.
void SendSamples(playground::Leader& leader, const std::vector<float>& samples) {
  const UniqueFd file(memfd_create("samples", MFD_CLOEXEC));
  const std::size_t size = samples.size() * sizeof(float);
  if (!file || pwrite(file.get(), samples.data(), size, 0) != static_cast<ssize_t>(size)) {
    throw std::runtime_error("the samples cannot be handed over");
  }
  const int descriptor = file.get();
  leader.Answer(std::to_string(samples.size()), std::span<const int>(&descriptor, 1));
}

std::vector<float> ReceiveSamples(playground::Worker& worker) {
  const playground::Message message = worker.Receive();
  std::vector<float> samples(std::stoull(message.text));
  const std::size_t size = samples.size() * sizeof(float);
  if (message.descriptors.empty() || pread(message.descriptors.front().get(), samples.data(), size,
                                           0) != static_cast<ssize_t>(size)) {
    throw std::runtime_error("a worker's samples did not arrive");
  }
  return samples;
}

void MeasureWith(Bench& bench, int processes, std::chrono::milliseconds time) {
  std::vector<playground::Worker> swarm;
  for (int i = 0; i < processes; ++i) swarm.push_back(StartWorker(bench, "swarm"));
  for (playground::Worker& worker : swarm) worker.Send("warm-up");
  for (playground::Worker& worker : swarm) worker.Receive();
  for (playground::Worker& worker : swarm) worker.Send("run " + std::to_string(time.count()));
  Samples each;
  double rate = 0;
  for (playground::Worker& worker : swarm) {
    const std::vector<float> samples = ReceiveSamples(worker);
    rate += static_cast<double>(samples.size()) / std::chrono::duration<double>(time).count();
    for (const float sample : samples) each.Add(sample);
  }
  Samples total;
  total.Add(rate);
  const std::string with = std::to_string(processes) + (processes == 1 ? " process" : " processes");
  bench.report.Add(kSection, with + ": grants, each released at once", 0, Unit::kPerSecond, total);
  bench.report.Add(kSection, with + ": one grant", 0, Unit::kMicros, each);
}

}  // namespace

void MeasureGrants(Bench& bench) {
  const std::chrono::milliseconds time(bench.quick ? 400 : 3000);
  for (const int processes : {1, 8, 64}) MeasureWith(bench, processes, time);
}

int RunSwarm(const std::string& runtime_dir, const std::string& gpu_uuid) {
  playground::Leader leader;
  ClientOptions client_options = OptionsOf(runtime_dir, "bench swarm");
  client_options.use_cuda = false;
  client_options.connect_timeout = std::chrono::seconds(20);
  std::optional<Client> client;
  AllocateOptions options;
  options.size_bytes = 2 * kMiB;
  options.gpu_uuid = gpu_uuid;
  options.wait = std::chrono::seconds(10);
  while (const std::optional<playground::Message> message = leader.Next()) {
    try {
      const std::vector<std::string> words = playground::Words(message->text);
      if (words.at(0) == "warm-up") {
        client.emplace(client_options);
        for (int i = 0; i < 5; ++i) client->Allocate(options).Release();
        leader.Answer("ok");
        continue;
      }
      const auto end =
          std::chrono::steady_clock::now() + std::chrono::milliseconds(std::stoi(words.at(1)));
      std::vector<float> samples;
      while (std::chrono::steady_clock::now() < end) {
        const Stopwatch watch;
        Lease lease = client->Allocate(options);
        samples.push_back(static_cast<float>(watch.micros()));
        lease.Release();
      }
      SendSamples(leader, samples);
    } catch (const std::exception& error) {
      leader.Answer(std::string("failed ") + error.what());
    }
  }
  return EXIT_SUCCESS;
}

}  // namespace gpulease::bench
