// SPDX-License-Identifier: Apache-2.0
//
// Hardware: on what a figure was measured; without it no figure says anything.
#pragma once

#include "client/bench/bench.h"

namespace gpulease::bench {

// Processor, GPU, driver, kernel, build and date, as facts of the report.
void DescribeHardware(Bench& bench);

}  // namespace gpulease::bench
