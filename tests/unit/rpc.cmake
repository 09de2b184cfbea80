# SPDX-License-Identifier: Apache-2.0
gpulease_test(
  NAME rpc_test
  SRCS rpc_call_loop_test.cc rpc_convert_test.cc
  DEPS gpulease_base gpulease_daemon_rpc
)
