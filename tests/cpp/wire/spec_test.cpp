#include "wire/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"

namespace torch_remote::wire {
namespace {

using testing::ElementsAre;

TensorSpec spec(std::vector<int64_t> sizes, std::vector<int64_t> strides,
                Dtype dtype = Dtype::kFloat32) {
  TensorSpec made;
  made.dtype = dtype;
  made.sizes = std::move(sizes);
  made.strides = std::move(strides);
  return made;
}

TensorSpec decoded(const std::string& text) {
  const auto bytes = from_hex(text);
  Reader reader(bytes);
  TensorSpec made = decode_spec(reader);
  reader.finish();
  return made;
}

TEST(View, ASpecComesBackAsItWas) {
  TensorSpec strided = spec({2, 3}, {1, 2}, Dtype::kComplex64);
  strided.conj = true;
  strided.neg = true;
  TensorSpec number = spec({}, {});
  number.wrapped = true;
  for (const TensorSpec& original : {spec({2, 3}, {3, 1}), strided, number, spec({0, 4}, {4, 1})}) {
    Writer writer;
    encode(writer, original);
    Reader reader(writer.view());
    EXPECT_EQ(decode_spec(reader), original);
    reader.finish();
  }
}

TEST(View, GoldenBytesOfAContiguousAndOfAStridedSpec) {
  Writer contiguous;
  encode(contiguous, spec({2, 3}, {3, 1}));
  EXPECT_EQ(hex(contiguous.view()), "0601020203");
  Writer strided;
  encode(strided, spec({2, 3}, {1, 2}, Dtype::kInt64));
  EXPECT_EQ(hex(strided.view()), "04000202030102");
}

TEST(View, ContiguousStridesIgnoreEmptyDimensions) {
  EXPECT_THAT(contiguous_strides({2, 0, 3}), ElementsAre(3, 3, 1));
}

TEST(View, TheExtentIsFromTheFirstByteToTheLast) {
  EXPECT_EQ(extent_bytes(spec({2, 3}, {3, 1})), 24);
  EXPECT_EQ(extent_bytes(spec({2, 3}, {10, 2})), (10 + 4 + 1) * 4);
  EXPECT_EQ(extent_bytes(spec({2, 3}, {0, 0})), 4);
  EXPECT_EQ(extent_bytes(spec({}, {}, Dtype::kComplex128)), 16);
  EXPECT_EQ(extent_bytes(spec({5, 0}, {100, 100})), 0);
}

// Promise 5.
TEST(View, ExtentsThatOverflowAreRefused) {
  EXPECT_THROW(extent_bytes(spec({3}, {INT64_MAX})), ProtocolError);
  EXPECT_THROW(extent_bytes(spec({2, 2}, {INT64_MAX / 2, INT64_MAX / 2 + 2})), ProtocolError);
  EXPECT_THROW(extent_bytes(spec({2}, {INT64_MAX - 1}, Dtype::kFloat64)), ProtocolError);
  EXPECT_THROW(element_count(spec({INT64_MAX, 2}, {0, 0})), ProtocolError);
}

// Promise 5.
TEST(View, ANegativeSizeIsRefused) {
  EXPECT_THROW(decoded("060101ffffffffffffffffff01"), ProtocolError);
}

TEST(View, UnknownDtypesFlagsAndDimensionsAreRefused) {
  EXPECT_THROW(decoded("160100"), ProtocolError);
  EXPECT_THROW(decoded("061000"), ProtocolError);
  EXPECT_THROW(decoded("060141"), ProtocolError);
}

TEST(View, EveryDtypeHasASize) {
  for (uint8_t i = 0; i < kDtypeCount; ++i)
    EXPECT_GT(element_bytes(checked_dtype(i)), 0);
  EXPECT_THROW(checked_dtype(kDtypeCount), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
