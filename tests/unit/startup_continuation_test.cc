// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/startup/continuation.h"
#include "daemon/startup/expectation.h"

namespace gpulease::startup {
namespace {

TEST(ContinuationTest, WhatIsFormattedIsParsed) {
  Continuation continuation;
  continuation.lock = 5;
  continuation.grpc_listener = 6;
  continuation.handle_listener = 7;
  continuation.activated = true;
  continuation.waited = true;
  continuation.retired = {{"GPU-a", false}, {"GPU-b", true}};
  continuation.served = {"GPU-c"};
  EXPECT_EQ(Parse(Format(continuation)), continuation);
  EXPECT_EQ(Parse(Format(Continuation())), Continuation());
}

TEST(ContinuationTest, OtherTextIsNone) {
  for (const char* text : {"lock", "lock=", "lock=x", "lock=5x", "unknown=1", "=1"})
    EXPECT_EQ(Parse(text), std::nullopt) << text;
}

TEST(ContinuationTest, OneOfAnotherProcessIsNotTaken) {
  setenv("GPULEASE_CONTINUATION", ("1 " + Format(Continuation())).c_str(), 1);
  EXPECT_EQ(TakeContinuation(), std::nullopt);
  EXPECT_EQ(getenv("GPULEASE_CONTINUATION"), nullptr) << "nor left to a child";
}

TEST(ContinuationTest, AnEndpointThatIsNoneIsRefused) {
  Continuation continuation;
  continuation.lock = continuation.grpc_listener = continuation.handle_listener = 0;
  EXPECT_FALSE(AdoptEndpoint(continuation).ok());
}

TEST(ExpectationTest, WhatIsMissingHasItsNameWhereItHasOne) {
  settings::Settings settings;
  EXPECT_TRUE(FindAbsentees(settings, {}).none());
  settings.expected_gpus = {"GPU-a", "GPU-b"};
  EXPECT_EQ(FindAbsentees(settings, {"GPU-b", "GPU-c"}).Text(), "GPU-a");
  settings.expected_gpu_count = 4;
  EXPECT_EQ(FindAbsentees(settings, {"GPU-b"}).Text(), "GPU-a and 2 more");
  EXPECT_EQ(FindAbsentees(settings, {"GPU-a", "GPU-b", "GPU-c"}).Text(), "1 GPU");
  EXPECT_TRUE(FindAbsentees(settings, {"GPU-a", "GPU-b", "GPU-c", "GPU-d", "GPU-e"}).none());
}

TEST(ExpectationTest, ACountOfZeroWantsNoDriver) {
  settings::Settings settings;
  EXPECT_TRUE(WantsDriver(settings));
  settings.expected_gpu_count = 1;
  EXPECT_TRUE(WantsDriver(settings));
  settings.expected_gpu_count = 0;
  EXPECT_FALSE(WantsDriver(settings));
}

}  // namespace
}  // namespace gpulease::startup
