# SPDX-License-Identifier: Apache-2.0
gpulease_test(NAME sdk_codec_test SRCS ${CMAKE_CURRENT_LIST_DIR}/sdk_codec_test.cc DEPS gpulease_codec gpulease_proto)
