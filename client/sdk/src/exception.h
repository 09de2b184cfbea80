// SPDX-License-Identifier: Apache-2.0
//
// From the inside's Result to the interface's Exception.
#pragma once

#include <utility>

#include "base/result.h"
#include "client/sdk/include/gpulease/gpulease.h"

namespace gpulease {

[[noreturn]] void Throw(const Error& error);

inline void OrThrow(const Status& status) {
  if (!status.ok()) Throw(status.error());
}

template <typename T>
T OrThrow(Result<T> result) {
  if (!result.ok()) Throw(result.error());
  return std::move(result).value();
}

}  // namespace gpulease
