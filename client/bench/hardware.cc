// SPDX-License-Identifier: Apache-2.0
#include "client/bench/hardware.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <string>

#include "base/bytes.h"
#include "client/playground/gpu.h"
#include "driver/nvml_driver.h"

namespace gpulease::bench {
namespace {

std::string Processor() {
  std::ifstream lines("/proc/cpuinfo");
  std::string model = "unknown";
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("model name")) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  }
  return model + ", " + std::to_string(sysconf(_SC_NPROCESSORS_ONLN)) + " logical";
}

std::string Driver(const std::string& simulated_directory) {
  const int cuda = playground::LoadCuda(simulated_directory)->version();
  const auto nvml = driver::NvmlDriver::Load({.simulated_directory = simulated_directory});
  return (nvml.ok() ? (*nvml)->driver_version() : std::string("unknown")) + ", CUDA " +
         std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10);
}

std::string Kernel() {
  utsname names{};
  uname(&names);
  return std::string(names.sysname) + " " + names.release + " " + names.machine;
}

std::string Date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

void DescribeHardware(Bench& bench) {
  Report& report = bench.report;
  report.AddFact("gpu", bench.gpu.name + ", " + FormatBytes(bench.gpu.total_bytes) + ", 1 of " +
                            std::to_string(bench.node.gpus.size()) + " used");
  if (bench.node.simulated) {
    report.AddFact("note",
                   "simulated: host memory behind the driver's functions; the figures are "
                   "about the broker, not about any GPU");
  }
  report.AddFact("driver", Driver(bench.simulated_directory));
  report.AddFact("processor", Processor());
  report.AddFact("kernel", Kernel());
  report.AddFact("gpuleased", bench.node.version);
  report.AddFact("build", GPULEASE_BUILD_TYPE);
  report.AddFact("date", Date());
}

}  // namespace gpulease::bench
