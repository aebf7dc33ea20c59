#include "wire/codec.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"

namespace torch_remote::wire {
namespace {

using testing::HasSubstr;

TEST(Codec, NumbersComeBackAsTheyWere) {
  Writer writer;
  writer.u8(200);
  writer.u32(0xdeadbeef);
  writer.u64(UINT64_MAX);
  writer.f64(-0.5);
  writer.text("text");
  Reader reader(writer.view());

  EXPECT_EQ(reader.u8(), 200);
  EXPECT_EQ(reader.u32(), 0xdeadbeef);
  EXPECT_EQ(reader.u64(), UINT64_MAX);
  EXPECT_EQ(reader.f64(), -0.5);
  EXPECT_EQ(reader.text(10, "text"), "text");
  reader.finish();
}

TEST(Codec, VarintsOfEveryLengthComeBack) {
  Writer writer;
  std::vector<uint64_t> values = {0, 127, 128, UINT64_MAX};
  for (unsigned bit = 0; bit < 64; ++bit)
    values.push_back(uint64_t{1} << bit);
  for (const uint64_t value : values)
    writer.varint(value);
  Reader reader(writer.view());
  for (const uint64_t value : values)
    EXPECT_EQ(reader.varint(), value);
  reader.finish();
}

TEST(Codec, ZigzagKeepsTheExtremes) {
  for (const int64_t value :
       {int64_t{0}, int64_t{-1}, int64_t{1}, std::numeric_limits<int64_t>::min(),
        std::numeric_limits<int64_t>::max()})
    EXPECT_EQ(from_zigzag(to_zigzag(value)), value);
  EXPECT_EQ(to_zigzag(-1), 1);
}

TEST(Codec, GoldenBytesOfAVarint) {
  Writer writer;
  writer.varint(300);
  writer.zigzag(-3);
  EXPECT_EQ(hex(writer.view()), "ac0205");
}

TEST(Codec, AVarintThatIsLongerThanItNeedsToBeIsRefused) {
  EXPECT_THROW(Reader(from_hex("8000")).varint(), ProtocolError);
  EXPECT_THROW(Reader(from_hex("ff8000")).varint(), ProtocolError);
}

TEST(Codec, AVarintThatDoesNotFitIsRefused) {
  const auto too_large = from_hex("ffffffffffffffffff02");
  EXPECT_THROW(Reader(too_large).varint(), ProtocolError);
  const auto too_long = from_hex("ffffffffffffffffffff01");
  EXPECT_THROW(Reader(too_long).varint(), ProtocolError);
}

TEST(Codec, ReadingPastTheEndIsAProtocolError) {
  const auto bytes = from_hex("01");
  EXPECT_THROW(Reader(bytes).u32(), ProtocolError);
  EXPECT_THROW(Reader(bytes).raw(2), ProtocolError);
  EXPECT_THROW(Reader(std::span<const std::byte>()).u8(), ProtocolError);
  const auto half = from_hex("80");
  EXPECT_THROW(Reader(half).varint(), ProtocolError);
}

TEST(Codec, ALengthBeyondTheInputIsAProtocolError) {
  const auto bytes = from_hex("0561");
  EXPECT_THROW(Reader(bytes).text(10, "name"), ProtocolError);
}

// Promise 7b.
TEST(Codec, TextThatIsNotUtf8IsAProtocolErrorUnlessPeopleReadIt) {
  const auto bytes = from_hex("02ff61");
  EXPECT_THROW(Reader(bytes).text(10, "name"), ProtocolError);
  EXPECT_EQ(Reader(bytes).readable_text(10, "name"),
            "\xef\xbf\xbd"
            "a");
}

TEST(Codec, ACountOverItsLimitIsRefusedInWordsThatNameIt) {
  const auto bytes = from_hex("05");
  try {
    Reader(bytes).count(4, "frees");
    FAIL();
  } catch (const ProtocolError& error) {
    EXPECT_THAT(error.what(), HasSubstr("frees: 5 is over the limit of 4"));
  }
}

TEST(Codec, BytesLeftOverAreAProtocolError) {
  const auto bytes = from_hex("00");
  EXPECT_THROW(Reader(bytes).finish(), ProtocolError);
}

TEST(Codec, TakingLeavesAnEmptyWriterThatCanBeUsedAgain) {
  Writer writer;
  writer.text("one");
  EXPECT_EQ(writer.take().size(), 4);
  EXPECT_TRUE(writer.empty());
  writer.u8(1);
  EXPECT_EQ(hex(writer.view()), "01");
}

}  // namespace
}  // namespace torch_remote::wire
