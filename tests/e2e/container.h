// SPDX-License-Identifier: Apache-2.0
//
// Container: what a runtime makes of a process: namespaces and a cgroup of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gpulease::e2e {

struct ContainerOptions {
  // PID and mount namespaces, as every container has them. The others are asked for:
  std::optional<std::uint32_t> root_uid;  // a user namespace, whose root is this user outside
  std::string cgroup;                     // a path below the mount of cgroup v2
};

// Why this machine lets nobody make such a container; empty when it does.
std::string WhyNoContainers();

// As fork(), with the child in a container of its own, as its root user. The child's PID is that of
// this process's namespace. -1: it was not possible.
pid_t ForkIntoContainer(const ContainerOptions& options);

// A cgroup of this name; gone with the object. Processes in it must have ended.
class Cgroup {
 public:
  explicit Cgroup(const std::string& name);
  ~Cgroup();
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;
  // Below the mount of cgroup v2, as /proc/PID/cgroup has it; empty when it could not be made.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gpulease::e2e
