#include "base/byte_count.h"

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

}  // namespace
}  // namespace torch_remote
