// SPDX-License-Identifier: Apache-2.0
//
// What an administrator writes: configuration text, simulated GPUs, amounts of memory. The first
// byte says which; what is read must read the same when it is written again.
#include "daemon/settings/settings.h"

#include "base/check.h"
#include "driver/simulated/simulated.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulease;
  fuzz::Input input(data, size);
  const std::uint8_t which = input.Byte();
  const std::string_view text = input.Rest();
  if (which == 's') {
    const Result<simulated::NodeSpec> spec = simulated::ParseSpec(text);
    if (!spec.ok()) {
      GPULEASE_CHECK(spec.error().reason == Reason::kBadField, spec.error().message);
      return 0;
    }
    GPULEASE_CHECK(!spec->gpus.empty() && spec->gpus.size() <= simulated::kMaxGpus, "its GPUs");
    const Result<simulated::NodeSpec> again = simulated::ParseSpec(simulated::FormatSpec(*spec));
    GPULEASE_CHECK(again.ok() && again->gpus == spec->gpus, simulated::FormatSpec(*spec));
  } else if (which == 'b') {
    const std::optional<Bytes> bytes = ParseBytes(text);
    if (!bytes) return 0;
    GPULEASE_CHECK(ParseBytes(std::to_string(*bytes)) == bytes, std::string(text));
    GPULEASE_CHECK(!FormatBytes(*bytes).empty(), std::string(text));
  } else {
    const Result<settings::Settings> settings = settings::ParseSettings(text, "fuzz");
    if (settings.ok()) {
      GPULEASE_CHECK(settings->leases_per_user > 0, "a limit is set");
      return 0;
    }
    GPULEASE_CHECK(settings.error().reason == Reason::kBadField, settings.error().message);
    GPULEASE_CHECK(settings.error().message.starts_with("fuzz:"), settings.error().message);
  }
  return 0;
}
