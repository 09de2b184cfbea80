# SPDX-License-Identifier: Apache-2.0
gpulease_test(NAME base_test
  SRCS bytes_test.cc descriptor_channel_test.cc process_status_test.cc runtime_dir_test.cc
  DEPS gpulease_base)
