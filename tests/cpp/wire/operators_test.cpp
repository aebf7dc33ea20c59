#include "wire/operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

using testing::ElementsAre;

constexpr std::string_view kAdd = "aten::add(Tensor self) -> Tensor";

template <typename Message>
std::string hex_of(const Message& message) {
  Writer writer;
  encode(writer, message);
  return hex(writer.view());
}

TEST(Operators, TheDigestDoesNotDependOnTheOrder) {
  EXPECT_EQ(operators_digest({"a", "b"}), operators_digest({"b", "a"}));
  EXPECT_NE(operators_digest({"a", "b"}), operators_digest({"ab"}));
  EXPECT_EQ(hex(operators_digest({})),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Operators, AFingerprintIsTheBeginningOfAHash) {
  EXPECT_EQ(schema_fingerprint(""), 0x141cfc9842c4b0e3U);  // e3b0c442…, little-endian
  EXPECT_NE(schema_fingerprint(kAdd), schema_fingerprint("aten::add(Tensor other) -> Tensor"));
}

TEST(Operators, ASchemaBeginsWithItsOperator) {
  EXPECT_EQ(operator_of(kAdd), "aten::add");
  EXPECT_EQ(operator_of("aten::add.out(Tensor self)"), "aten::add.out");
  EXPECT_EQ(operator_of("nothing"), "nothing");
}

TEST(Operators, FingerprintsComeBackAndHaveGoldenBytes) {
  Writer writer;
  encode_fingerprints(writer, std::vector<uint64_t>{1, 0x0203});
  EXPECT_EQ(hex(writer.view()), "01000000000000000302000000000000");
  Reader reader(writer.view());
  EXPECT_THAT(decode_fingerprints(reader), ElementsAre(1U, 0x0203U));
  const auto half = from_hex("0100000000");
  Reader cut(half);
  EXPECT_THROW(decode_fingerprints(cut), ProtocolError);
}

TEST(Operators, AQueryComesBackAndHasGoldenBytes) {
  EXPECT_EQ(hex_of(OperatorQuery{"a::b", "c"}), "04613a3a620163");
  const auto bytes = from_hex("04613a3a620163");
  Reader reader(bytes);
  const OperatorQuery query = decode_operator_query(reader);
  reader.finish();
  EXPECT_EQ(query.name, "a::b");
  EXPECT_EQ(query.overload, "c");
}

TEST(Operators, AnAnswerComesBackAndHasGoldenBytes) {
  EXPECT_EQ(hex_of(OperatorAnswer{false, "no", {}}), "00026e6f");
  EXPECT_EQ(hex_of(OperatorAnswer{true, "", {"a", "bc"}}), "01020161026263");
  const auto bytes = from_hex("01020161026263");
  Reader reader(bytes);
  EXPECT_THAT(decode_operator_answer(reader).arguments, ElementsAre("a", "bc"));
}

TEST(Operators, AnAnswerWithTooManyArgumentsIsAProtocolError) {
  const auto bytes = from_hex("01818004");
  Reader reader(bytes);
  EXPECT_THROW(decode_operator_answer(reader), ProtocolError);
  const auto neither = from_hex("02");
  Reader other(neither);
  EXPECT_THROW(decode_operator_answer(other), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
