// SPDX-License-Identifier: Apache-2.0
//
// One name, many processes that want its contents, and the one that fills it killed at any moment.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gpulease/gpulease.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/raw_client.h"

namespace gpulease::e2e {
namespace {

// One gpulease-test-loader.
class LoaderProcess {
 public:
  explicit LoaderProcess(const std::string& runtime_dir) {
    int in[2], out[2];
    GPULEASE_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0, "pipe2");
    const std::string program = BuiltProgram("gpulease-test-loader");
    pid_ = fork();
    GPULEASE_CHECK(pid_ >= 0, "fork");
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      execl(program.c_str(), program.c_str(), runtime_dir.c_str(), nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_.Reset(in[1]);
    from_.Reset(out[0]);
  }
  ~LoaderProcess() { Kill(); }
  LoaderProcess(const LoaderProcess&) = delete;

  void Send(std::string line) {
    line += "\n";
    GPULEASE_CHECK(write(to_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()),
                   "write");
  }
  // What it has said, a line; empty when it has said nothing.
  std::string Hear() {
    if (const std::size_t end = heard_.find('\n'); end != std::string::npos) {
      const std::string line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return line;
    }
    pollfd polled{from_.get(), POLLIN, 0};
    char buffer[512];
    if (poll(&polled, 1, 0) != 1) return "";
    const ssize_t size = read(from_.get(), buffer, sizeof buffer);
    if (size <= 0) return size == 0 ? "end" : "";
    heard_.append(buffer, static_cast<std::size_t>(size));
    return Hear();
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  int descriptor() const { return from_.get(); }

 private:
  pid_t pid_ = -1;
  UniqueFd to_, from_;
  std::string heard_;
};

// In ./dev test a few dozen rounds; GPULEASE_ROUNDS=1000 for a long run.
int Rounds() {
  const char* const rounds = std::getenv("GPULEASE_ROUNDS");
  return rounds != nullptr ? std::atoi(rounds) : 40;
}

TEST(LoadTest, SixteenProcessesRaceForOneNameAndExactlyOneFillsIt) {
  constexpr std::size_t kProcesses = 16;
  DaemonProcess daemon({.simulate = "1x1GiB"});
  std::vector<std::unique_ptr<LoaderProcess>> loaders;
  for (std::size_t i = 0; i < kProcesses; ++i)
    loaders.push_back(std::make_unique<LoaderProcess>(daemon.runtime_dir()));
  std::mt19937 random(17);
  int killed = 0, gave_up = 0;
  for (int round = 0; round < Rounds(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const std::string load = "load n" + std::to_string(round) + " ";
    for (auto& loader : loaders) loader->Send(load + std::to_string(random() % 1000));
    std::vector<bool> answered(kProcesses, false);
    std::size_t answers = 0, sealed = 0, filler = kProcesses;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (answers < kProcesses) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "somebody waits for ever";
      std::vector<pollfd> polled;
      for (auto& loader : loaders) polled.push_back({loader->descriptor(), POLLIN, 0});
      poll(polled.data(), polled.size(), 50);
      for (std::size_t i = 0; i < kProcesses; ++i) {
        for (std::string said = loaders[i]->Hear(); !said.empty(); said = loaders[i]->Hear()) {
          if (said == "fill") {
            filler = i;
            if (random() % 2 == 0) {
              usleep(static_cast<useconds_t>(random() % 2000));
              // It may be faster than the signal: then it is sealed, and the others attach.
              loaders[i]->Kill();
              ++killed;
              std::string last;
              while ((last = loaders[i]->Hear()) != "end") sealed += last == "sealed";
              loaders[i] = std::make_unique<LoaderProcess>(daemon.runtime_dir());
              loaders[i]->Send(load + std::to_string(random() % 1000));
            }
            continue;
          }
          if (said == "gave-up") {
            ++gave_up;
            continue;
          }
          ASSERT_FALSE(answered[i]) << said;
          ASSERT_TRUE(said == "sealed" || said == "right") << said;
          sealed += said == "sealed";
          answered[i] = true;
          ++answers;
        }
      }
    }
    EXPECT_LE(sealed, 1u);
    EXPECT_LT(filler, kProcesses);
    for (auto& loader : loaders) {
      loader->Send("release");
      ASSERT_TRUE(Eventually([&] { return loader->Hear() == "done"; }));
    }
    // Sealed by one that was killed in the very moment: it lasts, and is anybody's of its user.
    RawClient client(daemon.runtime_dir());
    if (const auto left = client.GetLease("n" + std::to_string(round)); left.ok()) {
      EXPECT_TRUE(left.message.lease().orphan() && left.message.lease().sealed());
      EXPECT_TRUE(client.Release(left.message.lease().lease_id()).ok());
    }
  }
  for (auto& loader : loaders) loader->Kill();
  RawClient client(daemon.runtime_dir());
  EXPECT_TRUE(Eventually([&] { return client.Node().lease_count() == 0; }))
      << client.Node().ShortDebugString();
  std::printf("%d rounds, %d fillers killed, %d gave up\n", Rounds(), killed, gave_up);
}

}  // namespace
}  // namespace gpulease::e2e
