# SPDX-License-Identifier: Apache-2.0
gpulease_test(NAME startup_test
  SRCS startup_continuation_test.cc startup_test.cc startup_watchdog_test.cc
  DEPS gpulease_base gpulease_daemon_startup gpulease_proto)
