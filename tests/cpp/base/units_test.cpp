#include "base/units.h"

#include <stdexcept>

#include <gtest/gtest.h>

namespace torch_remote {
namespace {

TEST(ByteCount, EachUnitIsUnderstood) {
  EXPECT_EQ(parse_bytes("--x", "3KiB"), 3072);
  EXPECT_EQ(parse_bytes("--x", "500MiB"), uint64_t{500} << 20);
  EXPECT_EQ(parse_bytes("--x", "20GiB"), uint64_t{20} << 30);
  EXPECT_EQ(parse_bytes("--x", "1TiB"), uint64_t{1} << 40);
  EXPECT_EQ(parse_bytes("--x", "8KB"), 8000);
  EXPECT_EQ(parse_bytes("--x", "8GB"), 8'000'000'000);
}

TEST(ByteCount, AnythingElseIsRefused) {
  for (const char* text : {"", "5", "GiB", "0GiB", "-1GiB", "+1GiB", "1.5GiB", "1 GiB", " 1GiB",
                           "1gib", "99999999999TiB", "99999999999999999999KiB"})
    EXPECT_THROW(parse_bytes("--x", text), std::invalid_argument) << text;
}

TEST(ByteCount, TheErrorNamesTheOptionAndSaysWhatToWrite) {
  try {
    parse_bytes("--max-memory", "10");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(
        error.what(),
        "--max-memory: '10' is not an amount of memory. Write a whole number and a unit, as "
        "in 500MiB, 20GiB or 8GB.");
  }
}

using std::chrono::milliseconds;

TEST(Duration, EachUnitIsUnderstood) {
  EXPECT_EQ(parse_duration("--x", "250ms"), milliseconds(250));
  EXPECT_EQ(parse_duration("--x", "30s"), milliseconds(30'000));
  EXPECT_EQ(parse_duration("--x", "10m"), milliseconds(600'000));
  EXPECT_EQ(parse_duration("--x", "2h"), milliseconds(7'200'000));
  EXPECT_EQ(parse_duration("--x", "0s"), milliseconds(0));
  EXPECT_EQ(parse_duration("--x", "0"), milliseconds(0));
}

TEST(Duration, TheTextHasTheLargestUnitThatGivesAWholeNumber) {
  for (const char* text : {"250ms", "1500ms", "30s", "90s", "10m", "2h", "0"})
    EXPECT_EQ(duration_text(parse_duration("--x", text)), text);
  EXPECT_EQ(duration_text(milliseconds(3'600'000)), "1h");
}

TEST(Duration, AnythingElseIsRefused) {
  for (const char* text : {"", "s", "10", "10 s", " 10s", "-1s", "+1s", "1.5s", "1d", "10sm",
                           "99999999999999999999s", "9999999999h", "00"})
    EXPECT_THROW(parse_duration("--x", text), std::invalid_argument) << text;
}

TEST(Duration, TheErrorNamesTheOptionAndSaysWhatToWrite) {
  try {
    parse_duration("--lease", "10");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(
        error.what(),
        "--lease: '10' is not a duration: the unit is missing. Write a whole number and a unit, as "
        "in 250ms, "
        "30s, 10m or 2h.");
  }
}

}  // namespace
}  // namespace torch_remote
