# SPDX-License-Identifier: Apache-2.0
gpulease_test(NAME memory_test SRCS memory_cgroup_test.cc memory_host_test.cc memory_ipc_test.cc memory_lane_test.cc
  DEPS gpulease_base gpulease_daemon_memory)
