// SPDX-License-Identifier: Apache-2.0
//
// One process leases memory and names it, others open it by that name:
//
//   share_weights lend            leases "weights" and "vocabulary", and keeps them until a key is
//                                 pressed
//   share_weights read [OWNER]    meanwhile, in any other process of a user who may
#include <cstring>
#include <iostream>
#include <string_view>

#include "gpulease/gpulease.h"

int main(int argc, char** argv) try {
  const std::string_view role = argc > 1 ? argv[1] : "";
  gpulease::Client client;
  if (role == "lend") {
    // On the GPU with the most free memory, readable by my group, waiting up to a minute for it.
    gpulease::Lease weights = client.Allocate({.size_bytes = 64ull << 20,
                                               .name = "weights",
                                               .mode = 0640,
                                               .wait = std::chrono::minutes(1)});
    gpulease::Mapping on_gpu = weights.Map();
    // Pinned host memory, which a GPU copies from at full speed.
    gpulease::Lease vocabulary = client.Allocate({.size_bytes = 1 << 20,
                                                  .kind = gpulease::MemoryKind::kHost,
                                                  .name = "vocabulary",
                                                  .mode = 0640,
                                                  .ordered = true});
    gpulease::Mapping on_host = vocabulary.Map();
    std::strcpy(static_cast<char*>(on_host.host_pointer()), "the quick brown fox");
    // Mapping orders nothing: who waits for this sees what was written before it. Work on a stream
    // is published by Publish(stream).
    vocabulary.Publish();
    std::cout << "weights: cuMemcpyHtoD may write to 0x" << std::hex << on_gpu.device_pointer()
              << std::endl;
    std::cin.get();
  } else if (role == "read") {
    const std::string owner = argc > 2 ? std::string(argv[2]) + "/" : "";
    gpulease::Lease weights = client.Open(owner + "weights", gpulease::Access::kReadOnly);
    gpulease::Mapping on_gpu = weights.Map();
    gpulease::Lease vocabulary = client.Open(owner + "vocabulary", gpulease::Access::kReadOnly);
    gpulease::Mapping on_host = vocabulary.Map();
    vocabulary.WaitPublished(1, std::chrono::seconds(60));
    std::cout << "weights: " << weights.size_bytes() << " bytes at 0x" << std::hex
              << on_gpu.device_pointer()
              << "\nvocabulary: " << static_cast<const char*>(on_host.host_pointer()) << std::endl;
  } else {
    std::cerr << "usage: share_weights lend | read [OWNER]\n";
    return 2;
  }
} catch (const gpulease::Exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
