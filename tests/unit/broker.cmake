# SPDX-License-Identifier: Apache-2.0
gpulease_test(NAME broker_test SRCS broker_event_hub_test.cc DEPS gpulease_base gpulease_daemon_broker)
