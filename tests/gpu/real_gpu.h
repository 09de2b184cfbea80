// SPDX-License-Identifier: Apache-2.0
//
// RealGpuTest: the first real GPU of this machine; without one its tests skip, and say so.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/bytes.h"
#include "driver/gpu_probe.h"

namespace gpulease::gpu_test {

class RealGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto cuda = driver::CudaDriver::Load({});
    if (!cuda.ok()) GTEST_SKIP() << "no real GPU: " << cuda.error().message;
    const auto nvml = driver::NvmlDriver::Load({});
    ASSERT_TRUE(nvml.ok()) << nvml.error().message;
    nvml_ = *nvml;
    const auto gpus = driver::DescribeGpus(**cuda, nvml_.get());
    ASSERT_TRUE(gpus.ok());
    uuid_ = gpus->front().uuid;
    total_ = gpus->front().total;
    before_ = Used();
    Begin();
  }
  // With a GPU.
  virtual void Begin() = 0;
  Bytes Used() const { return nvml_->Memory(uuid_)->used; }

  std::shared_ptr<const driver::NvmlDriver> nvml_;
  std::string uuid_;
  Bytes total_ = 0;
  Bytes before_ = 0;  // used before the daemon was there
};

}  // namespace gpulease::gpu_test
