// SPDX-License-Identifier: Apache-2.0
#include "client/bench/samples.h"

#include <algorithm>
#include <cmath>

namespace gpulease::bench {

void Samples::Add(const Samples& others) {
  values_.insert(values_.end(), others.values_.begin(), others.values_.end());
}

double Samples::Percentile(double percent) const {
  if (values_.empty()) return 0;
  std::vector<double> sorted = values_;
  const double rank = std::ceil(percent / 100 * static_cast<double>(sorted.size()));
  const std::size_t index = rank < 1 ? 0 : static_cast<std::size_t>(rank) - 1;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(index),
                   sorted.end());
  return sorted[index];
}

}  // namespace gpulease::bench
