# SPDX-License-Identifier: Apache-2.0
gpulease_test(NAME settings_test SRCS settings_test.cc DEPS gpulease_daemon_settings)
