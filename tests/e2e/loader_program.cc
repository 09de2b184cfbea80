// SPDX-License-Identifier: Apache-2.0
//
// gpulease-test-loader RUNTIME_DIR: loads or attaches leases by name, as it is told, so that a test
// can kill it in between. Commands come by line from standard input, answers go to standard output:
//
//   load NAME SEED   LoadOrAttach. Who is to fill it says "fill", writes all words, half of them
//                    after a pause that SEED makes, and seals it: "sealed". With an odd SEED it may
//                    give up half-way instead: "gave-up", and it asks again.
//                    Who attaches says "right" when every word is the one that the tag names, else
//                    "wrong". While it fills, it has the file lock RUNTIME_DIR/filler: "not-alone"
//                    when it does not get it.
//   release          releases what it has sealed, lets go of what it has attached: "done"
#include <fcntl.h>
#include <gpulease/gpulease.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <thread>

namespace {

using Word = std::uint64_t;
constexpr std::uint64_t kBytes = 256 << 10;

void Say(const std::string& answer) { std::cout << answer << std::endl; }

std::span<Word> WordsOf(const gpulease::Mapping& mapping) {
  return {reinterpret_cast<Word*>(mapping.host_pointer()), mapping.size_bytes() / sizeof(Word)};
}

class Loader {
 public:
  explicit Loader(const std::string& runtime_dir)
      : client_({.runtime_dir = runtime_dir, .use_cuda = false}),
        filler_(open((runtime_dir + "/filler").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {}

  void Load(const std::string& name, unsigned seed) {
    std::mt19937 random(seed);
    for (;;) {
      gpulease::LoadedLease loaded = client_.LoadOrAttach({.size_bytes = kBytes,
                                                           .kind = gpulease::MemoryKind::kHost,
                                                           .name = name,
                                                           .persistent = true},
                                                          std::chrono::seconds(60));
      if (!loaded.fill) {
        const gpulease::Mapping mapping = loaded.lease.Map();
        const std::span<Word> words = WordsOf(mapping);
        const bool right = std::all_of(words.begin(), words.end(), [&](Word word) {
          return std::to_string(word) == loaded.lease.content_tag();
        });
        lease_ = std::move(loaded.lease);
        return Say(right ? "right" : "wrong");
      }
      Say("fill");
      // Free, at the latest, when the process that had it is dead.
      if (flock(filler_, LOCK_EX | LOCK_NB) != 0) return Say("not-alone");
      const Word word = (Word{static_cast<unsigned>(getpid())} << 32) + random();
      {
        const gpulease::Mapping mapping = loaded.lease.Map();
        const std::span<Word> words = WordsOf(mapping);
        std::fill(words.begin(), words.begin() + words.size() / 2, word);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
        if (seed % 2 == 1 && random() % 4 == 0) {
          flock(filler_, LOCK_UN);
          Say("gave-up");
          continue;  // the lease goes with its objects
        }
        std::fill(words.begin() + words.size() / 2, words.end(), word);
      }
      flock(filler_, LOCK_UN);
      loaded.lease.Seal(std::to_string(word));
      lease_ = std::move(loaded.lease);
      return Say("sealed");
    }
  }

  void Release() {
    if (lease_ && lease_->owned()) lease_->Release();
    lease_.reset();
    Say("done");
  }

 private:
  gpulease::Client client_;
  const int filler_;
  std::optional<gpulease::Lease> lease_;
};

}  // namespace

int main(int, char** argv) {
  try {
    Loader loader(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string verb, name;
      unsigned seed = 0;
      words >> verb >> name >> seed;
      if (verb == "load") {
        loader.Load(name, seed);
      } else {
        loader.Release();
      }
    }
  } catch (const std::exception& exception) {
    Say(std::string("error ") + exception.what());
  }
  return 0;
}
