// SPDX-License-Identifier: Apache-2.0
#include "client/examples/demo/story.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "base/bytes.h"
#include "client/playground/interruption.h"

namespace gpulease::demo {
namespace {

using playground::Words;
using playground::Worker;
using std::chrono::steady_clock;

constexpr int kMembers = 4;
constexpr int kVictim = 2;
constexpr int kNeighbour = 3;  // has the victim's buffers open
constexpr std::uint64_t kReal = 64 * kMiB;
constexpr std::uint64_t kSimulated = 16 * kMiB;
constexpr auto kComesBack = std::chrono::seconds(15);

int Before(int member) { return (member + kMembers - 1) % kMembers; }

double Millis(steady_clock::time_point from, steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

std::string Short(const std::string& uuid) { return uuid.substr(0, 12); }

ClientOptions Options(const std::string& runtime_dir) {
  ClientOptions options;
  options.runtime_dir = runtime_dir;
  options.program = "demo";
  options.use_cuda = false;
  return options;
}

void Head(const char* text) { std::printf("\n%s\n", text); }

}  // namespace

Story::Story(const playground::PrivateDaemon& daemon)
    : daemon_(daemon),
      client_(Options(daemon.runtime_dir())),
      size_(daemon.node().simulated ? kSimulated : kReal) {
  std::copy_if(daemon.node().gpus.begin(), daemon.node().gpus.end(), std::back_inserter(gpus_),
               [](const GpuStatus& gpu) { return gpu.ready; });
}

bool Story::Tell() {
  Introduce();
  Lease();
  GoRound();
  Kill();
  GoOn();
  Finish();
  return right_;
}

const GpuStatus& Story::GpuOf(int member) const {
  return gpus_[static_cast<std::size_t>(member) % gpus_.size()];
}

GpuStatus Story::Now(const std::string& uuid) {
  for (const GpuStatus& gpu : client_.Node().gpus) {
    if (gpu.uuid == uuid) return gpu;
  }
  throw std::runtime_error(uuid + " is not there any more");
}

void Story::Introduce() {
  const NodeStatus& node = daemon_.node();
  std::printf("gpuleased %s in %s, with %zu %s GPU%s\n", node.version.c_str(),
              daemon_.runtime_dir().c_str(), gpus_.size(), node.simulated ? "simulated" : "real",
              gpus_.size() == 1 ? "" : "s");
  if (node.simulated) {
    std::printf(
        "(a simulated GPU is host memory behind the CUDA driver's functions: what happens is\n"
        "the same, the speeds are this machine's memory's)\n");
  }
  Show({"gpus"});
}

void Story::Lease() {
  Head("1. Four processes lease: two buffers on a GPU and pinned host memory each, by name");
  std::vector<int> everybody;
  for (int member = 0; member < kMembers; ++member) {
    const std::string number = std::to_string(member);
    workers_.emplace_back(
        "worker " + number,
        std::vector<std::string>{"--worker", number, "--runtime-dir", daemon_.runtime_dir()});
    everybody.push_back(member);
  }
  for (int member : everybody) {
    workers_[member].Send("lease " + GpuOf(member).uuid + " " + std::to_string(size_));
  }
  for (int member : everybody) {
    workers_[member].Receive();
    std::printf("   worker %d (pid %d)  ring-%da, ring-%db: %s each on %s; staging-%d: %s pinned\n",
                member, workers_[member].process().pid(), member, member,
                FormatBytes(size_).c_str(), Short(GpuOf(member).uuid).c_str(), member,
                FormatBytes(size_).c_str());
  }
  for (int member : everybody) {
    workers_[member].Send("open " + std::to_string(Before(member)));
  }
  for (int member : everybody) {
    workers_[member].Receive();
    std::printf("   worker %d has opened ring-%da and ring-%db, to read\n", member, Before(member),
                Before(member));
  }
  const auto rates = AskAll(everybody, "fill");
  for (int member : everybody) {
    std::printf("   worker %d has filled ring-%da from its pinned memory: %s MB/s\n", member,
                member, rates[member].at(0).c_str());
  }
  Show({"leases"});
}

std::vector<std::vector<std::string>> Story::AskAll(const std::vector<int>& members,
                                                    const std::string& command) {
  for (int member : members) workers_[member].Send(command);
  std::vector<std::vector<std::string>> answers;
  for (int member : members) answers.push_back(Words(workers_[member].Receive().text));
  return answers;
}

void Story::VerifyAll(const std::vector<int>& members, int which, const std::vector<int>& origins,
                      const std::vector<int>& sources,
                      const std::vector<std::vector<std::string>>& copies) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    workers_[members[i]].Send("verify own " + std::to_string(which) + " " +
                              std::to_string(origins[i]));
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto answer = Words(workers_[members[i]].Receive().text);
    const bool right = answer.at(1) == "0";
    right_ = right_ && right;
    const char from = which == 0 ? 'b' : 'a';
    const char to = which == 0 ? 'a' : 'b';
    std::printf(
        "   worker %d: ring-%d%c -> ring-%d%c %7s MB/s, read back %7s MB/s, worker %d's "
        "data, %s\n",
        members[i], sources[i], from, members[i], to, copies[i].at(0).c_str(), answer.at(0).c_str(),
        origins[i], right ? "every byte right" : (answer.at(1) + " bytes WRONG").c_str());
  }
}

void Story::GoRound() {
  Head("2. Around the ring: each copies from the buffer of the one before it, then all check");
  const std::vector<int> everybody = {0, 1, 2, 3};
  int front = 0;
  for (int step = 1; step <= kMembers; ++step) {
    std::printf("   step %d\n", step);
    // Each answer comes after the stream is done, and nobody checks or overwrites before all have
    // answered: that is the order between processes.
    const auto copies = AskAll(everybody, "copy " + std::to_string(front));
    front = 1 - front;
    std::vector<int> origins;
    std::vector<int> sources;
    for (int member : everybody) {
      origins.push_back((member + kMembers - step) % kMembers);
      sources.push_back(Before(member));
    }
    VerifyAll(everybody, front, origins, sources, copies);
  }
  std::printf("   after %d steps the data of each is home again\n", kMembers);
}

void Story::Kill() {
  Head("3. One of them is killed in the middle of a copy");
  const std::string uuid = GpuOf(kVictim).uuid;
  Worker& victim = workers_[kVictim];
  const std::uint64_t scratch = Now(uuid).free_bytes / 2 / (2 * kMiB) * (2 * kMiB);
  victim.Ask("scratch " + std::to_string(scratch));
  std::printf("   worker %d leases %s more on %s, and copies into it without end\n", kVictim,
              FormatBytes(scratch).c_str(), Short(uuid).c_str());
  victim.Ask("copy-for-ever");

  // All that is free now and what the victim has besides its ring: it fits when that is back, up to
  // a 64th for what other programs may do on the GPU meanwhile.
  const std::uint64_t free = Now(uuid).free_bytes;
  AllocateOptions all;
  all.size_bytes = free + scratch - std::max(scratch / 64, 2 * kMiB);
  all.gpu_uuid = uuid;
  all.name = "heir";
  all.wait = kComesBack;
  PendingLease pending = client_.Request(all);
  std::printf("   somebody asks for %s there, of which %s are free: place %u in the queue\n",
              FormatBytes(all.size_bytes).c_str(), FormatBytes(free).c_str(),
              pending.queue_position());
  Show({"leases"});
  Show({"gpus"});

  const auto killed = steady_clock::now();
  victim.process().Signal(SIGKILL);
  if (!playground::WaitReadable(victim.process().pidfd(), kComesBack)) {
    throw std::runtime_error("the killed process does not end");
  }
  const auto ended = steady_clock::now();
  std::optional<gpulease::Lease> heir = pending.Wait(kComesBack);
  const auto granted = steady_clock::now();
  if (!heir) throw std::runtime_error("the killed process's memory did not come back");
  std::printf("   SIGKILL to worker %d (pid %d)\n", kVictim, victim.process().pid());
  std::printf("   %8.1f ms later the process has ended\n", Millis(killed, ended));
  std::printf("   %8.1f ms later its %s are leased to the one who waited\n",
              Millis(killed, granted), FormatBytes(scratch).c_str());
  std::printf("   (ring-%da and ring-%db stay: worker %d has them open)\n", kVictim, kVictim,
              kNeighbour);
  Show({"leases"});
  heir->Release();
}

void Story::GoOn() {
  Head("4. The survivors are unharmed");
  // What the victim wrote last into its front buffer: its own data, which had come home.
  const auto answer =
      Words(workers_[kNeighbour].Ask("verify neighbour 0 " + std::to_string(kVictim)).text);
  right_ = right_ && answer.at(1) == "0";
  std::printf("   worker %d still reads ring-%da of the dead one: %s\n", kNeighbour, kVictim,
              answer.at(1) == "0" ? "every byte right" : (answer.at(1) + " bytes WRONG").c_str());
  workers_[kNeighbour].Ask("close");
  const int new_neighbour = Before(kVictim);
  workers_[kNeighbour].Ask("open " + std::to_string(new_neighbour));
  std::printf(
      "   it lets go of it, and opens ring-%da and ring-%db instead; a step of the ring of "
      "three:\n",
      new_neighbour, new_neighbour);
  const std::vector<int> survivors = {0, 1, 3};
  const std::vector<int> sources = {3, 0, 1};
  const auto copies = AskAll(survivors, "copy 0");
  VerifyAll(survivors, 1, sources, sources, copies);
}

void Story::Finish() {
  Head("5. All processes end, and all memory is back");
  workers_.clear();
  const auto end = steady_clock::now() + kComesBack;
  while (true) {
    std::uint64_t leased = 0;
    for (const GpuStatus& gpu : client_.Node().gpus) leased += gpu.leased_bytes;
    if (leased == 0) break;
    if (steady_clock::now() > end) {
      right_ = false;
      std::printf("   %s did NOT come back\n", FormatBytes(leased).c_str());
      break;
    }
    playground::ThrowIfInterrupted();
  }
  Show({"gpus"});
  std::printf("\n%s\n", right_ ? "Every byte was right." : "Something was WRONG: see above.");
}

void Story::Show(const std::vector<std::string>& arguments) {
  std::printf("\n   $ gpuleasectl");
  for (const std::string& argument : arguments) std::printf(" %s", argument.c_str());
  std::printf("\n");
  std::istringstream lines(playground::Ctl(daemon_.runtime_dir(), arguments));
  for (std::string line; std::getline(lines, line);) {
    std::printf(line.empty() ? "\n" : "   %s\n", line.c_str());
  }
  std::printf("\n");
}

}  // namespace gpulease::demo
