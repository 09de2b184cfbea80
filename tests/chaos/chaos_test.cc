// SPDX-License-Identifier: Apache-2.0
//
// Everything at once: programs that lease without rest, and at random instants kills of them, of
// the daemon and of its keeper, driver faults, descriptor limits, nonsense on the sockets. In the
// end every byte, descriptor and session is accounted for.
//
// GPULEASE_CHAOS_SECONDS (10) and GPULEASE_CHAOS_SEED (1) choose how long, and what happens.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <list>
#include <random>
#include <string>

#include "base/unique_fd.h"
#include "tests/e2e/assertions.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/eventually.h"
#include "tests/e2e/keeper_process.h"
#include "tests/e2e/raw_client.h"

namespace gpulease::chaos {
namespace {

using e2e::Eventually;
using ::testing::HasSubstr;
using ::testing::Not;

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// One gpulease-chaos-client.
class Client {
 public:
  Client(const std::string& runtime_dir, std::uint64_t seed, std::uint32_t files) {
    int input[2];
    if (pipe2(input, O_CLOEXEC) != 0) std::abort();
    input_.Reset(input[1]);
    const std::string program = e2e::BuiltProgram("gpulease-chaos-client");
    const std::string number = std::to_string(seed);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(input[0], 0);
      if (files != 0) {
        const rlimit limit = {files, files};
        setrlimit(RLIMIT_NOFILE, &limit);
      }
      execl(program.c_str(), program.c_str(), runtime_dir.c_str(), number.c_str(), nullptr);
      _exit(127);
    }
    close(input[0]);
  }
  ~Client() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Ends it by a signal, or by itself in good order. What it ended with is right?
  ::testing::AssertionResult End(bool killed) {
    if (killed) kill(pid_, SIGKILL);
    input_.Reset();
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ::testing::AssertionSuccess();
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << (WIFEXITED(status) ? "a client ended with " + std::to_string(WEXITSTATUS(status))
                                 : "a client died of signal " + std::to_string(WTERMSIG(status)));
  }

 private:
  pid_t pid_ = -1;
  UniqueFd input_;
};

// Connects to one of the daemon's sockets and says something that makes no sense.
void TalkNonsense(const std::string& path, int type, std::mt19937_64& random) {
  const UniqueFd peer(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (connect(peer.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return;
  std::string bytes(1 + random() % 600, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  static_cast<void>(send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

// What a test sees of the daemon that has to be there.
class ChaosTest : public ::testing::Test {
 protected:
  static constexpr char kConfig[] =
      "largest_chunk: \"8MiB\" session_grace_ms: 300 host_memory_percent: 2 log_level: \"warn\"";

  ChaosTest()
      : keeper_(folder_.path() + "/run"),
        daemon_(
            {.simulate = "2x256MiB", .config = kConfig, .runtime_dir = folder_.path() + "/run"}),
        random_(seed_) {}

  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }

  void Disturb() {
    switch (Below(16)) {
      case 0:
        daemon_.Kill();
        daemon_.Start();
        return;
      case 1:
        EXPECT_EQ(daemon_.Stop(std::chrono::seconds(20)), 0);
        daemon_.Start();
        return;
      case 2:
        keeper_.Kill();
        keeper_.Start();
        return;
      case 3:
        keeper_.Upgrade();
        return;
      case 4:
        InjectFault();
        return;
      case 5:
        kill(daemon_.pid(), SIGHUP);
        return;
      case 7:
        if (Below(4) == 0) DrainOne();
        if (Below(6) == 0) LoseOne();
        return;
      case 6:
        TalkNonsense(daemon_.grpc_socket(), SOCK_STREAM, random_);
        TalkNonsense(daemon_.handle_socket(), SOCK_SEQPACKET, random_);
        return;
      default:
        KillClient();
    }
  }

  // Out of service with all that is on it, and back.
  void DrainOne() {
    const std::string uuid = daemon_.node().uuid_text(static_cast<int>(Below(2)));
    const std::string ctl = e2e::BuiltProgram("gpuleasectl");
    const auto run = [&](std::vector<std::string> words) {
      daemon_.notifications();  // as a service manager, reads what it is told
      words.insert(words.begin(), {ctl, "--runtime-dir", daemon_.runtime_dir()});
      return e2e::RunProgram(words);
    };
    // A fault may keep a lease for ever: then it is still draining.
    daemon_.node().ClearFaults();
    const e2e::Ended drained = run({"drain", uuid, "--force", "--yes"});
    EXPECT_EQ(drained.exit_code, 0) << drained.output << run({"leases", "-o", "json"}).output
                                    << run({"gpus", "-o", "json"}).output;
    const e2e::Ended undrained = run({"undrain", uuid});
    EXPECT_EQ(undrained.exit_code, 0) << undrained.output;
  }

  // Lost with all that is on it, and back when it is well.
  void LoseOne() {
    const int gpu = static_cast<int>(Below(2));
    daemon_.node().ClearFaults();
    daemon_.node().RaiseXid(gpu, 79);
    const std::string ctl = e2e::BuiltProgram("gpuleasectl");
    e2e::Ended undrained;
    EXPECT_TRUE(Eventually([&] {
      daemon_.notifications();
      undrained = e2e::RunProgram(
          {ctl, "--runtime-dir", daemon_.runtime_dir(), "undrain", daemon_.node().uuid_text(gpu)});
      return undrained.exit_code == 0;
    })) << undrained.output
        << e2e::RunProgram({ctl, "--runtime-dir", daemon_.runtime_dir(), "gpus"}).output;
  }

  void InjectFault() {
    static constexpr const char* kFunctions[] = {"cuMemCreate",
                                                 "cuMemExportToShareableHandle",
                                                 "cuMemRelease",
                                                 "nvmlDeviceGetMemoryInfo_v2",
                                                 "cuMemImportFromShareableHandle",
                                                 "cuMemMap",
                                                 "cuMemSetAccess"};
    simulated::Fault fault;
    fault.function = kFunctions[Below(std::size(kFunctions))];
    // A client that cannot let go of a chunk has it until it ends, and a drain waits for that.
    if (fault.function == "cuMemRelease") fault.pid = daemon_.pid();
    fault.nth = static_cast<std::int64_t>(1 + Below(20));
    fault.times = static_cast<std::int64_t>(1 + Below(3));
    fault.code = fault.function.starts_with("nvml") ? 999 : 2;  // unknown; out of memory
    // Some are pending already: enough goes wrong.
    static_cast<void>(daemon_.node().InjectFault(fault).ok());
  }

  void KillClient() {
    if (clients_.size() < 6) {
      const std::uint32_t files = Below(8) == 0 ? 48 : 0;
      clients_.emplace_back(daemon_.runtime_dir(), random_(), files);
      return;
    }
    auto chosen = clients_.begin();
    std::advance(chosen, static_cast<long>(Below(clients_.size())));
    EXPECT_TRUE(chosen->End(Below(4) != 0));
    clients_.erase(chosen);
  }

  const std::uint64_t seed_ = FromEnvironment("GPULEASE_CHAOS_SEED", 1);
  e2e::TemporaryDirectory folder_;
  e2e::KeeperProcess keeper_;
  e2e::DaemonProcess daemon_;
  std::mt19937_64 random_;
  std::list<Client> clients_;
};

TEST_F(ChaosTest, InTheEndEverythingIsAccountedFor) {
  const std::chrono::seconds time(FromEnvironment("GPULEASE_CHAOS_SECONDS", 10));
  const auto began = std::chrono::steady_clock::now();
  std::size_t daemon_descriptors = daemon_.settled_descriptors();
  const std::size_t keeper_descriptors = keeper_.open_descriptors();
  std::uint64_t disturbances = 0;
  auto told = began;
  while (std::chrono::steady_clock::now() - began < time && !HasFailure()) {
    Disturb();
    ++disturbances;
    // Some instant later, not a condition: any is right.
    usleep(static_cast<useconds_t>(Below(60'000)));
    daemon_.notifications();
    ASSERT_TRUE(daemon_.running()) << "seed " << seed_ << ": the daemon died:\n" << daemon_.log();
    if (const auto now = std::chrono::steady_clock::now(); now - told > std::chrono::seconds(10)) {
      told = now;
      std::printf("%llds: %llu disturbances\n",
                  static_cast<long long>(
                      std::chrono::duration_cast<std::chrono::seconds>(now - began).count()),
                  static_cast<unsigned long long>(disturbances));
      std::fflush(stdout);
      EXPECT_TRUE(e2e::AddsUp(e2e::RawClient(daemon_.runtime_dir()).Node())) << "seed " << seed_;
    }
  }
  for (Client& client : clients_) EXPECT_TRUE(client.End(false));
  clients_.clear();
  daemon_.node().ClearFaults();
  // A daemon that was killed again and again has quarantined what it found; after one that ended in
  // good order it is taken up, and ends as its clients have.
  EXPECT_EQ(daemon_.Stop(std::chrono::seconds(20)), 0) << "seed " << seed_ << ":\n"
                                                       << daemon_.log();
  daemon_.Start();
  const auto all_back = [&] {
    const v1::GetNodeResponse node = e2e::RawClient(daemon_.runtime_dir()).Node();
    if (node.session_count() != 0 || node.lease_count() != 0) return false;
    for (const v1::Gpu& gpu : node.gpus()) {
      if (gpu.memory().free_bytes() != gpu.memory().total_bytes()) return false;
    }
    return daemon_.node().Used(0) + daemon_.node().Used(1) == 0;
  };
  EXPECT_TRUE(Eventually(all_back))
      << "seed " << seed_ << ": " << e2e::RawClient(daemon_.runtime_dir()).Node().ShortDebugString()
      << "\n"
      << daemon_.node().Used(0) << " and " << daemon_.node().Used(1) << " bytes used\n"
      << daemon_.log();
  EXPECT_TRUE(Eventually([&] { return daemon_.open_descriptors() <= daemon_descriptors; }))
      << "seed " << seed_ << ": " << daemon_.open_descriptors() << " descriptors of the daemon, "
      << daemon_descriptors << " before";
  EXPECT_TRUE(Eventually([&] { return keeper_.open_descriptors() <= keeper_descriptors; }))
      << "seed " << seed_ << ": " << keeper_.open_descriptors() << " descriptors of the keeper, "
      << keeper_descriptors << " before";
  EXPECT_THAT(daemon_.log(), Not(HasSubstr("check failed"))) << "seed " << seed_;
  EXPECT_THAT(daemon_.log(), Not(HasSubstr("Sanitizer"))) << "seed " << seed_;
  EXPECT_THAT(keeper_.log(), Not(HasSubstr("Sanitizer"))) << "seed " << seed_;
  EXPECT_EQ(daemon_.Stop(), 0);
  EXPECT_EQ(keeper_.Stop(), 0);
}

}  // namespace
}  // namespace gpulease::chaos
