// SPDX-License-Identifier: Apache-2.0
//
// The example of the interface's header, as a user compiles it: without anything else of gpulease,
// and with the error that a machine without a daemon gives.
#include <gpulease/gpulease.h>

#include <cstdio>
#include <cstring>

int main() {
  try {
    gpulease::Client client(
        {.runtime_dir = "/nonexistent/gpulease", .connect_timeout = std::chrono::milliseconds(1)});
    gpulease::Lease weights =
        client.Allocate({.size_bytes = 4ull << 30, .name = "weights", .mode = 0640});
    gpulease::Mapping mapped = weights.Map();
    std::printf("%p\n", mapped.host_pointer());
  } catch (const gpulease::Exception& exception) {
    const bool right = exception.code() == gpulease::ErrorCode::kUnavailable &&
                       std::strstr(exception.what(), "/nonexistent/gpulease/handles.sock");
    std::printf("%s\n", exception.what());
    return right ? 0 : 1;
  }
  return 1;
}
