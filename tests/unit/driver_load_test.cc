// SPDX-License-Identifier: Apache-2.0
//
// Loading a driver that is missing, broken, foreign or too old; and what a simulated node is said
// to be made of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "driver/cuda_driver.h"
#include "driver/nvml_driver.h"
#include "driver/shared_library.h"
#include "driver/simulated/simulated.h"

namespace gpulease {
namespace {

using driver::CudaDriver;
using driver::NvmlDriver;
using simulated::ParseSpec;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Loads another library in the simulated driver's place, for the time of a test.
class LibraryVariable {
 public:
  explicit LibraryVariable(const std::string& file) {
    setenv(driver::kSimulatedLibraryVariable, file.c_str(), 1);
  }
  ~LibraryVariable() { unsetenv(driver::kSimulatedLibraryVariable); }
};

std::string BesideThisProgram(const char* file) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" /
          file)
      .string();
}

TEST(CudaDriverTest, SaysWhichLibraryIsMissing) {
  const LibraryVariable variable("/nonexistent/libgpulease-simulated.so");
  const auto cuda = CudaDriver::Load({"/tmp"});
  ASSERT_FALSE(cuda.ok());
  EXPECT_EQ(cuda.error().code, Code::kNotFound);
  EXPECT_EQ(cuda.error().reason, Reason::kUnsupported);
  EXPECT_THAT(cuda.error().message,
              AllOf(HasSubstr("/nonexistent/libgpulease-simulated.so"), HasSubstr("no such file"),
                    HasSubstr("GPULEASE_SIMULATED_LIBRARY")));
}

TEST(CudaDriverTest, SaysWhatTheLoaderSaysOfAFileThatIsNoLibrary) {
  const LibraryVariable variable("/etc/passwd");
  const auto nvml = NvmlDriver::Load({"/tmp"});
  ASSERT_FALSE(nvml.ok());
  EXPECT_EQ(nvml.error().code, Code::kNotFound);
  EXPECT_THAT(nvml.error().message, HasSubstr("invalid ELF header"));
}

TEST(CudaDriverTest, SaysThatALibraryIsSomethingElse) {
  const LibraryVariable variable(BesideThisProgram("libdriver-stub-foreign.so"));
  const auto cuda = CudaDriver::Load({"/tmp"});
  ASSERT_FALSE(cuda.ok());
  EXPECT_EQ(cuda.error().code, Code::kFailedPrecondition);
  EXPECT_THAT(cuda.error().message, HasSubstr("not gpulease's simulated driver"));
}

TEST(CudaDriverTest, SaysWhichFunctionIsMissing) {
  const LibraryVariable variable(BesideThisProgram("libdriver-stub-12.so"));
  const auto cuda = CudaDriver::Load({"/tmp"});
  ASSERT_FALSE(cuda.ok());
  EXPECT_EQ(cuda.error().code, Code::kFailedPrecondition);
  EXPECT_EQ(cuda.error().reason, Reason::kUnsupported);
  EXPECT_THAT(cuda.error().message,
              AllOf(HasSubstr("libdriver-stub-12.so"), HasSubstr("has no function cuGetErrorName"),
                    HasSubstr("CUDA 12.4"), HasSubstr("CUDA 12.0 or newer")));
  const auto nvml = NvmlDriver::Load({"/tmp"});
  ASSERT_FALSE(nvml.ok());
  EXPECT_THAT(nvml.error().message, HasSubstr("has no function nvmlInit_v2"));
}

TEST(CudaDriverTest, SaysWhichVersionIsTooOld) {
  const LibraryVariable variable(BesideThisProgram("libdriver-stub-11.so"));
  const auto cuda = CudaDriver::Load({"/tmp"});
  ASSERT_FALSE(cuda.ok());
  EXPECT_EQ(cuda.error().code, Code::kFailedPrecondition);
  EXPECT_EQ(cuda.error().reason, Reason::kUnsupported);
  EXPECT_THAT(cuda.error().message,
              AllOf(HasSubstr("is of CUDA 11.4"), HasSubstr("CUDA 12.0 or newer")));
}

TEST(CudaDriverTest, SaysWhenTheDirectoryDescribesNoNode) {
  const auto cuda = CudaDriver::Load({"/nonexistent-node"});
  ASSERT_FALSE(cuda.ok());
  EXPECT_EQ(cuda.error().code, Code::kFailedPrecondition);
  EXPECT_THAT(cuda.error().message, HasSubstr("/nonexistent-node/node"));
}

TEST(NodeSpecTest, ReadsCountsAndSizes) {
  EXPECT_EQ(ParseSpec("2x16GiB")->gpus, (std::vector<Bytes>{16 * kGiB, 16 * kGiB}));
  EXPECT_EQ(ParseSpec("1x8GiB, 1x24GiB")->gpus, (std::vector<Bytes>{8 * kGiB, 24 * kGiB}));
  EXPECT_EQ(ParseSpec("512MiB")->gpus, (std::vector<Bytes>{512 * kMiB}));
  for (const char* text : {"2x16GiB", "1x8GiB,1x24GiB", "3x2MiB"}) {
    EXPECT_EQ(simulated::FormatSpec(*ParseSpec(text)), text);
  }
}

TEST(NodeSpecTest, SaysWhatIsWrong) {
  const auto message = [](const char* text) {
    const Result<simulated::NodeSpec> spec = ParseSpec(text);
    EXPECT_FALSE(spec.ok()) << text;
    if (spec.ok()) return std::string();
    EXPECT_EQ(spec.error().code, Code::kInvalidArgument);
    EXPECT_EQ(spec.error().reason, Reason::kBadField);
    return spec.error().message;
  };
  EXPECT_THAT(message(""), HasSubstr("\"\" is no size"));
  EXPECT_THAT(message("2x"), HasSubstr("\"\" is no size"));
  EXPECT_THAT(message("0x16GiB"), HasSubstr("\"0\" is no number of GPUs"));
  EXPECT_THAT(message("twox16GiB"), HasSubstr("no number of GPUs"));
  EXPECT_THAT(message("2x16GiB,"), HasSubstr("is no size"));
  EXPECT_THAT(message("1x3MiB"), HasSubstr("not a multiple of 2.0 MiB"));
  EXPECT_THAT(message("1x5TiB"), HasSubstr("more than the 4.0 TiB"));
  EXPECT_THAT(message("17x1GiB"), HasSubstr("more than 16 GPUs"));
  EXPECT_THAT(message("4294967296x1GiB"), HasSubstr("no number of GPUs"));
  EXPECT_THAT(message("nonsense"), HasSubstr("write COUNTxSIZE"));
}

}  // namespace
}  // namespace gpulease
