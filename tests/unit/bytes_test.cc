// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <gtest/gtest.h>

namespace gpulease {
namespace {

TEST(BytesTest, PrintsOneDecimalFromKiBOn) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(60 * kGiB), "60.0 GiB");
  EXPECT_EQ(FormatBytes(~Bytes{0}), "16777216.0 TiB");
}

TEST(BytesTest, ReadsWhatPeopleWrite) {
  EXPECT_EQ(ParseBytes("16GiB"), 16 * kGiB);
  EXPECT_EQ(ParseBytes("1.5 GiB"), 3 * kGiB / 2);
  EXPECT_EQ(ParseBytes("512"), 512u);
  EXPECT_EQ(ParseBytes("512B"), 512u);
}

TEST(BytesTest, RefusesWhatIsNoAmount) {
  for (const char* text : {"", "GiB", "-1", "1GB", "1.5", "1.GiB", "1 gib", "99999999999999999999",
                           "20000000TiB", "1 GiB "}) {
    EXPECT_EQ(ParseBytes(text), std::nullopt) << text;
  }
}

TEST(BytesTest, RoundsUpWithoutWrapping) {
  EXPECT_EQ(RoundUp(0, 4096), 0u);
  EXPECT_EQ(RoundUp(1, 4096), 4096u);
  EXPECT_EQ(RoundUp(4096, 4096), 4096u);
  EXPECT_EQ(RoundUp(~Bytes{0}, 4096), std::nullopt);
  EXPECT_EQ(CheckedAdd(~Bytes{0}, 1), std::nullopt);
}

}  // namespace
}  // namespace gpulease
