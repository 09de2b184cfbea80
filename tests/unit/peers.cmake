# SPDX-License-Identifier: Apache-2.0
gpulease_test(NAME peers_test
  SRCS peers_endpoint_test.cc peers_handle_socket_test.cc peers_identity_test.cc
  DEPS gpulease_base gpulease_daemon_peers)
