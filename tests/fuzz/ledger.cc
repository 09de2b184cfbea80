// SPDX-License-Identifier: Apache-2.0
//
// The ledger: a day of traffic as the fuzzer has it, every sum checked after every command, and all
// of it back in the end.
#include "base/check.h"
#include "tests/fuzz/input.h"
#include "tests/unit/ledger_replay.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulease;
  fuzz::Input input(data, size);
  ledger::Replay day(1, [&input](std::uint64_t end) { return input.Below(end); });
  while (!input.empty()) {
    day.Step();
    const std::string wrong = day.Check();
    GPULEASE_CHECK(wrong.empty(), wrong);
  }
  day.Finish();
  const std::string wrong = day.Check();
  GPULEASE_CHECK(wrong.empty(), wrong);
  return 0;
}
