# SPDX-License-Identifier: Apache-2.0
add_library(gpulease_fake_daemon STATIC EXCLUDE_FROM_ALL
  ${CMAKE_CURRENT_LIST_DIR}/../fakes/fake_daemon.cc ${CMAKE_CURRENT_LIST_DIR}/../fakes/fake_daemon.h)
target_link_libraries(gpulease_fake_daemon PUBLIC gpulease_settings gpulease_base gpulease_proto)
if(GPULEASE_SANITIZE MATCHES "thread")
  target_compile_options(gpulease_fake_daemon PRIVATE -fno-sanitize=thread)
endif()

gpulease_test(NAME sdk_codec_test SRCS ${CMAKE_CURRENT_LIST_DIR}/sdk_codec_test.cc
  DEPS gpulease_codec gpulease_proto)
gpulease_test(NAME sdk_transport_test SRCS ${CMAKE_CURRENT_LIST_DIR}/sdk_transport_test.cc
  DEPS gpulease_sdk_session gpulease_fake_daemon)
gpulease_test(NAME sdk_client_test SRCS ${CMAKE_CURRENT_LIST_DIR}/sdk_client_test.cc
  DEPS gpulease_sdk gpulease_fake_daemon)
