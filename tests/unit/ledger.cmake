# SPDX-License-Identifier: Apache-2.0
gpulease_test(NAME ledger_test
  SRCS ledger_allocate_test.cc ledger_death_notice_test.cc ledger_elastic_test.cc ledger_ipc_test.cc
       ledger_lasting_test.cc ledger_lifetime_test.cc ledger_loss_test.cc ledger_observe_test.cc ledger_queue_test.cc
       ledger_restore_test.cc ledger_rights_test.cc ledger_session_test.cc ledger_suspend_test.cc ledger_terms_test.cc
  DEPS gpulease_ledger)
gpulease_test(NAME ledger_replay_test SRCS ledger_replay_test.cc ledger_scale_test.cc DEPS gpulease_ledger TIMEOUT 600)
