// SPDX-License-Identifier: Apache-2.0
//
// RingWorker: one process of the ring. It leases two buffers "ring-<number>a" and "...b" and pinned
// memory to stage what it writes and checks, opens its neighbour's buffers by name, and copies from
// them. It does what the leader says, one step at a time: the leader's order is what makes a copy
// come before a check in another process, for mapping memory orders nothing.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/playground/gpu.h"
#include "client/playground/worker.h"
#include "gpulease/gpulease.h"

namespace gpulease::demo {

class RingWorker {
 public:
  // Serves the leader until it is gone. The exit code.
  static int Run(int number, const std::string& runtime_dir);

  RingWorker(int number, const std::string& runtime_dir);

 private:
  struct Buffer {
    Lease lease;
    Mapping mapped;  // after the lease: it goes first
  };

  // The commands; words[0] is the command's name. Each returns the answer.
  std::string LeaseBuffers(const std::string& gpu_uuid, std::uint64_t size);
  std::string OpenNeighbour(const std::string& number);
  std::string CloseNeighbour();
  std::string Fill();
  std::string Copy(int front);                                // neighbour's front -> own back
  std::string Verify(bool neighbour, int which, int origin);  // device -> pinned, every byte
  std::string LeaseScratch(std::uint64_t size);
  [[noreturn]] void CopyForEver(playground::Leader& leader);
  std::string Do(const std::vector<std::string>& words, playground::Leader& leader);

  Buffer MakeDeviceBuffer(const std::string& name, std::uint64_t size);
  void CopyBetween(const Buffer& to, const Buffer& from, std::uint64_t size);

  const int number_;
  Client client_;
  const std::string simulated_directory_;
  std::optional<playground::Gpu> gpu_;
  std::optional<playground::Gpu> far_gpu_;  // the neighbour's, where ours does not reach it
  Buffer staging_;
  Buffer own_[2];
  Buffer neighbour_[2];
  Buffer scratch_;
};

}  // namespace gpulease::demo
