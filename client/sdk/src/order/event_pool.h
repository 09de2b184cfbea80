// SPDX-License-Identifier: Apache-2.0
//
// EventPool: the interprocess events of this process, which other processes open by their handles.
//
// What another process may have open must not be destroyed here (the driver calls it undefined), so
// that an event that is not needed any more is kept for the next one who needs one in its context:
// there are never more than were needed at once. A process can have 4,096 (H200, driver 580).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"
#include "client/sdk/src/memory/cuda_process.h"

namespace gpulease {

// The 64 bytes of a CUipcEventHandle, as words that can be written and read one by one.
using EventHandle = std::array<std::uint64_t, 8>;

struct LocalEvent {
  cuda::CUevent event = nullptr;
  EventHandle handle{};
};

class EventPool {
 public:
  // One for the context, which is current. Errors: those of CudaDriver::MakeError.
  static Result<LocalEvent> Take(const driver::CudaDriver& cuda, cuda::CUcontext context);
  // It is complete, and nobody is told of it any more.
  static void PutBack(const LocalEvent& event);
  // The driver does not know it any more: its context was destroyed.
  static void Drop(const LocalEvent& event);
  // The event of this process with this handle.
  static std::optional<cuda::CUevent> Find(const EventHandle& handle);
};

}  // namespace gpulease
