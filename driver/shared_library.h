// SPDX-License-Identifier: Apache-2.0
//
// SharedLibrary: a driver's library, loaded at run time. The one place that calls dlopen, and the
// one that knows where the simulated driver's library lies.
//
// Invariant: what was loaded stays loaded until the process ends, so that a function found here can
// be called for ever.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "driver/cuda_driver.h"

namespace gpulease::driver {

// Names the library's file instead of looking beside this program.
inline constexpr char kSimulatedLibraryVariable[] = "GPULEASE_SIMULATED_LIBRARY";

// A loaded library. A value: copies name the same library.
class SharedLibrary {
 public:
  // The machine's `soname` ("libcuda.so.1"), or the simulated driver, which is then told its
  // directory.
  //
  // Errors:
  //   kNotFound/kUnsupported       the library cannot be loaded: the message has the name, the
  //                                loader's reason, and what helps.
  //   kFailedPrecondition/kDriver  the simulated driver refuses the directory.
  static Result<SharedLibrary> Load(const DriverChoice& choice, std::string_view soname);

  // The function's address, or nullptr.
  void* Find(const char* symbol) const;
  // "libcuda.so.1 (/usr/lib/…/libcuda.so.1) has no cuMemCreate: …"
  Error MissingFunction(const char* symbol, std::string_view needed) const;

  const std::string& name() const { return name_; }

 private:
  SharedLibrary(void* library, std::string name) : library_(library), name_(std::move(name)) {}

  void* library_;
  std::string name_;
};

}  // namespace gpulease::driver
