// SPDX-License-Identifier: Apache-2.0
//
// gpulease-chaos-client RUNTIME_DIR SEED: a program that uses the SDK without rest: leases of both
// kinds, waits, names that others open, sizes that change, publications, barriers, threads, forked
// children. It ends with 3, and says why, when a byte is not what it wrote; what the SDK throws is
// in the nature of the thing.
#include <gpulease/barrier.h>
#include <gpulease/gpulease.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "driver/cuda_driver.h"

namespace gpulease::chaos {
namespace {

constexpr int kWrong = 3;

struct Held {
  Lease lease;
  Mapping mapping;
  unsigned char value = 0;  // of every byte
  bool writable = false;
};

class ChaosClient {
 public:
  ChaosClient(std::string runtime_dir, std::uint64_t seed)
      : runtime_dir_(std::move(runtime_dir)), random_(seed) {
    auto loaded = driver::CudaDriver::Load({runtime_dir_ + "/simulated"});
    if (!loaded.ok()) std::exit(1);
    cuda_ = *loaded;
  }

  // Until it is killed, or its standard input ends.
  void Run() {
    std::thread([] {
      while (std::getchar() != EOF) {
      }
      std::_Exit(0);
    }).detach();
    for (;;) {
      try {
        if (!client_) {
          client_ = std::make_unique<Client>(
              ClientOptions{.runtime_dir = runtime_dir_, .program = "chaos"});
        }
        Step();
      } catch (const Exception& error) {
        // A daemon that lost the session: what is held is over.
        if (error.reason() == ErrorReason::kSessionEnded) Forget();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(Below(3000)));
    }
  }

 private:
  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }

  void Forget() {
    held_.clear();
    client_.reset();
  }

  void Step() {
    switch (Below(16)) {
      case 0:
      case 1:
      case 2:
        if (held_.size() < 8) Allocate();
        return;
      case 3:
        if (held_.size() < 8) OpenAnothers();
        return;
      case 4:
      case 5:
        if (!held_.empty()) Check(held_[Below(held_.size())]);
        return;
      case 6:
      case 7:
        if (!held_.empty()) {
          const auto chosen = held_.begin() + static_cast<std::ptrdiff_t>(Below(held_.size()));
          Check(*chosen);
          if (chosen->writable && Below(2) == 0) chosen->lease.Release();
          held_.erase(chosen);
        }
        return;
      case 8:
        static_cast<void>(client_->Node());
        static_cast<void>(client_->Leases());
        return;
      case 9:
        static_cast<void>(client_->NextEvent(std::chrono::milliseconds(Below(5))));
        return;
      case 11:
        if (held_.size() < 8) LoadOrAttach();
        return;
      case 10:
        if (Below(20) == 0) Forget();
        return;
      case 12:
      case 13:
        if (!held_.empty()) ChangeSize(held_[Below(held_.size())]);
        return;
      case 14:
        Meet();
        return;
      default:
        if (Below(20) == 0) ForkOne();
    }
  }

  void Allocate() {
    AllocateOptions options;
    options.kind = Below(3) == 0 ? MemoryKind::kHost : MemoryKind::kDevice;
    options.size_bytes = 1 + Below(options.kind == MemoryKind::kHost ? 4 * kMiB : 48 * kMiB);
    options.mode = 0666;
    options.wait = std::chrono::milliseconds(Below(2) == 0 ? 0 : Below(400));
    if (Below(2) == 0) options.name = "n" + std::to_string(Below(6));
    if (Below(4) == 0) options.linger = std::chrono::milliseconds(Below(300));
    if (options.kind == MemoryKind::kDevice && Below(3) == 0) options.reserve_bytes = 64 * kMiB;
    options.ordered = Below(4) == 0;
    Held held{.lease = client_->Allocate(options)};
    held.mapping = held.lease.Map();
    held.writable = true;
    CheckIs(held, 0, "fresh memory");
    held.value = static_cast<unsigned char>(1 + Below(255));
    Fill(held);
    held_.push_back(std::move(held));
    if (options.ordered) held_.back().lease.Publish();
  }

  // What was there stays. What comes reads as zeros, or is what it was when a shrink that waited
  // for others is taken back.
  void ChangeSize(Held& held) {
    if (held.lease.reserved_bytes() == 0) return;
    if (!held.writable) {
      held.lease.Refresh();
      return;
    }
    const std::size_t before = Size(held);
    static_cast<void>(held.lease.Resize(1 + Below(held.lease.reserved_bytes()),
                                        std::chrono::milliseconds(Below(100))));
    const std::size_t after = Size(held);
    CheckIs(held, held.value, "what was kept", 0, std::min(before, after), held.value);
    if (after > before) CheckIs(held, 0, "what it grew by", before, after, held.value);
    Fill(held);
  }

  // Rounds of two, whoever comes.
  void Meet() {
    Barrier barrier(*client_, {.name = "b" + std::to_string(Below(2)),
                               .participants = 2,
                               .mode = 0666,
                               .timeout = std::chrono::milliseconds(Below(100))});
    for (std::uint64_t round = Below(20); round > 0; --round) {
      barrier.Wait(std::chrono::milliseconds(1 + Below(200)));
    }
  }

  // Its tag says of what value every byte is.
  void LoadOrAttach() {
    AllocateOptions options;
    options.kind = Below(2) == 0 ? MemoryKind::kHost : MemoryKind::kDevice;
    options.size_bytes = 1 + Below(4 * kMiB);
    options.name = "l" + std::to_string(Below(3));
    options.linger = std::chrono::milliseconds(Below(300));
    LoadedLease loaded = client_->LoadOrAttach(options, std::chrono::milliseconds(Below(100)));
    Held held{.lease = std::move(loaded.lease)};
    held.mapping = held.lease.Map();
    if (loaded.fill) {
      held.value = static_cast<unsigned char>(1 + Below(255));
      Fill(held);
      if (Below(4) == 0) return;  // gives up
      held.lease.Seal(std::to_string(held.value));
      held.writable = true;
    } else {
      held.value = static_cast<unsigned char>(std::stoi(held.lease.content_tag()));
      CheckIs(held, held.value, "what was sealed");
    }
    held_.push_back(std::move(held));
  }

  void OpenAnothers() {
    Held held{.lease = client_->Open("n" + std::to_string(Below(6)), Access::kReadOnly)};
    held.mapping = held.lease.Map();
    // Its owner may be filling it: one value or zero, as far as is known.
    held.value = First(held);
    held_.push_back(std::move(held));
    if (Below(4) == 0) {
      held_.back().lease.WaitPublished(1, std::chrono::milliseconds(Below(50)));
    }
  }

  static std::size_t Size(const Held& held) {
    return static_cast<std::size_t>(held.mapping.size_bytes());
  }

  void Fill(Held& held) {
    if (held.lease.kind() == MemoryKind::kHost) {
      std::memset(held.mapping.host_pointer(), held.value, Size(held));
    } else {
      Context();
      cuda_->cuMemsetD8(held.mapping.device_pointer(), held.value, Size(held));
    }
  }

  std::vector<unsigned char> Read(const Held& held, std::size_t offset, std::size_t size) {
    std::vector<unsigned char> bytes(size);
    if (held.lease.kind() == MemoryKind::kHost) {
      std::memcpy(bytes.data(), held.mapping.bytes().data() + offset, size);
    } else {
      Context();
      if (cuda_->cuMemcpyDtoH(bytes.data(), held.mapping.device_pointer() + offset, size) !=
          cuda::CUDA_SUCCESS) {
        bytes.clear();  // a lost GPU
      }
    }
    return bytes;
  }
  unsigned char First(const Held& held) {
    const std::vector<unsigned char> byte = Read(held, 0, 1);
    return byte.empty() ? 0 : byte[0];
  }

  void Check(const Held& held) {
    if (held.writable) CheckIs(held, held.value, "what was written");
  }
  // Both ends and something between: tails of pages and of chunks are where others' bytes would be.
  void CheckIs(const Held& held, unsigned char value, const char* what) {
    CheckIs(held, value, what, 0, Size(held), value);
  }
  void CheckIs(const Held& held, unsigned char value, const char* what, std::size_t from,
               std::size_t to, unsigned char or_value) {
    constexpr std::size_t kPiece = 64 * 1024;
    const std::size_t piece = std::min(to - from, kPiece);
    for (const std::size_t offset : {from, from + Below(to - from - piece + 1), to - piece}) {
      const std::vector<unsigned char> bytes = Read(held, offset, piece);
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] == value || bytes[i] == or_value) continue;
        std::fprintf(stderr, "lease %llu: byte %zu of %s is %d instead of %d\n",
                     static_cast<unsigned long long>(held.lease.id()), offset + i, what, bytes[i],
                     value);
        std::_Exit(kWrong);
      }
    }
  }

  void Context() {
    cuda::CUcontext context = nullptr;
    if (!context_) cuda_->cuDevicePrimaryCtxRetain(&context_, 0);
    context = context_;
    cuda_->cuCtxSetCurrent(context);
  }

  // A child that keeps what it inherits for a while; the parent may be dead by then.
  void ForkOne() {
    const pid_t child = fork();
    if (child == 0) {
      usleep(static_cast<useconds_t>(Below(50'000)));
      std::_Exit(0);
    }
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }

  const std::string runtime_dir_;
  std::mt19937_64 random_;
  std::shared_ptr<const driver::CudaDriver> cuda_;
  cuda::CUcontext context_ = nullptr;
  std::unique_ptr<Client> client_;
  std::vector<Held> held_;
};

}  // namespace
}  // namespace gpulease::chaos

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  gpulease::chaos::ChaosClient(argv[1], std::strtoull(argv[2], nullptr, 10)).Run();
}
