// SPDX-License-Identifier: Apache-2.0
#include "driver/shared_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace gpulease::driver {
namespace {

constexpr std::string_view kSimulatedLibrary = "libgpulease-simulated.so";

// "" when it has none.
std::string DirectoryOf(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string() : std::string(path.substr(0, slash));
}

// Where the simulated driver may lie, the likeliest first: beside the code that runs (a program, or
// libgpulease.so in somebody's program), in the lib folders next to it, else where the loader
// looks.
std::vector<std::string> SimulatedCandidates() {
  if (const char* file = std::getenv(kSimulatedLibraryVariable); file != nullptr && *file != '\0') {
    return {file};
  }
  std::vector<std::string> directories;
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&SimulatedCandidates), &here) != 0) {
    directories.push_back(DirectoryOf(here.dli_fname));
  }
  char program[PATH_MAX];
  if (const ssize_t length = readlink("/proc/self/exe", program, sizeof program); length > 0) {
    directories.push_back(DirectoryOf({program, static_cast<std::size_t>(length)}));
  }
  std::vector<std::string> candidates;
  for (const std::string& directory : directories) {
    if (directory.empty()) continue;
    for (const char* below :
         {"/", "/../lib/", "/../lib/gpulease/", "/gpulease/", "/../gpulease/"}) {
      candidates.push_back(directory + below + std::string(kSimulatedLibrary));
    }
  }
  candidates.emplace_back(kSimulatedLibrary);
  return candidates;
}

std::string LoaderReason() {
  const char* reason = dlerror();
  return reason != nullptr ? reason : "the loader gives no reason";
}

Result<SharedLibrary> NotFound(std::string message) {
  return MakeError(Code::kNotFound, Reason::kUnsupported, std::move(message));
}

}  // namespace

Result<SharedLibrary> SharedLibrary::Load(const DriverChoice& choice, std::string_view soname) {
  if (choice.simulated_directory.empty()) {
    const std::string name(soname);
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      return NotFound(name + " cannot be loaded: " + LoaderReason() +
                      ". Install the NVIDIA driver; in a container, let the NVIDIA container "
                      "toolkit add it (capabilities compute,utility); to try without a GPU, "
                      "simulate one");
    }
    return SharedLibrary(library, name);
  }

  std::string looked_for;
  std::string broken;
  for (const std::string& candidate : SimulatedCandidates()) {
    const bool path = candidate.find('/') != std::string::npos;
    if (path && access(candidate.c_str(), F_OK) != 0) {
      looked_for += (looked_for.empty() ? "" : ", ") + candidate;
      continue;
    }
    void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      broken = LoaderReason();
      looked_for += (looked_for.empty() ? "" : ", ") + candidate;
      continue;
    }
    using Use = const char* (*)(const char*);
    const Use use = reinterpret_cast<Use>(dlsym(library, "gpulease_simulated_use"));
    if (use == nullptr) {
      return gpulease::MakeError(
          Code::kFailedPrecondition, Reason::kUnsupported,
          candidate + " is not gpulease's simulated driver: it has no gpulease_simulated_use");
    }
    if (const char* refusal = use(choice.simulated_directory.c_str()); refusal != nullptr) {
      return gpulease::MakeError(Code::kFailedPrecondition, Reason::kDriver,
                                 "simulated driver " + candidate + ": " + refusal);
    }
    return SharedLibrary(library, candidate);
  }
  return NotFound("the simulated driver cannot be loaded: " +
                  (broken.empty() ? std::string("no such file") : broken) + " (looked for " +
                  looked_for + "). Install it, or name its file in " + kSimulatedLibraryVariable);
}

void* SharedLibrary::Find(const char* symbol) const { return dlsym(library_, symbol); }

Error SharedLibrary::MissingFunction(const char* symbol, std::string_view needed) const {
  return gpulease::MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                             name_ + " has no function " + symbol + ": " + std::string(needed));
}

}  // namespace gpulease::driver
