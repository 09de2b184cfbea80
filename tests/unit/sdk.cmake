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
gpulease_test(NAME sdk_device_test SRCS ${CMAKE_CURRENT_LIST_DIR}/sdk_device_test.cc
  DEPS gpulease_sdk gpulease_simulation gpulease_fake_daemon)
add_dependencies(sdk_device_test gpulease_simulated)
gpulease_test(NAME sdk_order_test SRCS ${CMAKE_CURRENT_LIST_DIR}/sdk_order_test.cc DEPS gpulease_sdk)

# What the library shows and needs; a sanitizer's runtime adds its own.
if(NOT GPULEASE_SANITIZE)
  add_test(NAME sdk_library_test COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/sdk_library_test.sh
    $<TARGET_FILE:gpulease_client> ${CMAKE_NM} ${CMAKE_READELF})
  # A program of a user: the interface, the library and nothing else of ours.
  add_executable(sdk_header_test ${CMAKE_CURRENT_LIST_DIR}/sdk_header_test.cc)
  target_link_libraries(sdk_header_test PRIVATE gpulease::client)
  add_test(NAME sdk_header_test COMMAND sdk_header_test)
endif()
