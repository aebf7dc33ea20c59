#include "wire/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/limits.h"
#include "wire/slots.h"

namespace torch_remote::wire {
namespace {

using testing::ElementsAre;

// The key of one call: operator 0, device 0, environment 0, these values and storages, in hex.
std::vector<std::byte> key(const std::string& values, size_t count,
                           const std::string& storages = "00") {
  std::string text = "000000";
  text += hex(std::array{static_cast<std::byte>(count)});
  return from_hex(text + values + storages);
}

Signature decoded(std::span<const std::byte> key_bytes,
                  const std::vector<Output>* outputs = nullptr) {
  SignatureParts parts;
  parts.key = key_bytes;
  parts.outputs_known = outputs != nullptr;
  if (outputs != nullptr)
    parts.outputs = *outputs;
  Writer writer;
  encode(writer, parts);
  Reader reader(writer.view());
  Signature signature = decode_signature(reader, 1);
  reader.finish();
  return signature;
}

const std::string kVector =
    "01"
    "06010102";  // kTensor, float32 contiguous (2)

TEST(Signature, ItComesBackWithItsIntroductionDefaultsAndOutputs) {
  const Introduction introduction{"aten::relu", "out", {"self", "out"}};
  const std::vector<uint32_t> defaults = {1};
  Output fresh;
  fresh.kind = OutputKind::kFresh;
  Output same;
  same.kind = OutputKind::kTensor;
  Output list;
  list.kind = OutputKind::kList;
  list.items = {fresh};
  const std::vector<Output> outputs = {same, list};
  const auto key_bytes = key(kVector + "00" + kVector + "01", 2,
                             "02"
                             "00"
                             "0108");
  SignatureParts parts;
  parts.index = 300;
  parts.introduction = &introduction;
  parts.defaults = defaults;
  parts.key = key_bytes;
  parts.outputs_known = true;
  parts.outputs = outputs;
  Writer writer;
  encode(writer, parts);
  Reader reader(writer.view());

  const Signature signature = decode_signature(reader, 0);

  reader.finish();
  EXPECT_EQ(signature.index, 300);
  EXPECT_EQ(signature.introduction->name, "aten::relu");
  EXPECT_THAT(signature.introduction->arguments, ElementsAre("self", "out"));
  EXPECT_THAT(signature.defaults, ElementsAre(1));
  ASSERT_EQ(signature.arguments.size(), 2);
  EXPECT_EQ(signature.arguments[1].storage, 1);
  EXPECT_EQ(signature.arguments[1].extent, 8);
  EXPECT_FALSE(signature.storages[0].fresh);
  EXPECT_EQ(signature.storages[1].nbytes, 8);
  EXPECT_EQ(signature.outputs[1].items.size(), 1);
}

TEST(Signature, GoldenBytes) {
  const Introduction introduction{"a::b", "c", {"x"}};
  const auto key_bytes = key(kVector + "00", 1, "0100");
  Output fresh;
  fresh.kind = OutputKind::kFresh;
  fresh.spec.sizes = {2};
  fresh.spec.strides = {1};
  const std::vector<Output> outputs = {fresh};
  SignatureParts parts;
  parts.index = 1;
  parts.introduction = &introduction;
  parts.key = key_bytes;
  parts.outputs_known = true;
  parts.outputs = outputs;
  Writer writer;
  encode(writer, parts);
  EXPECT_EQ(hex(writer.view()),
            "0100"
            "04613a3a62"
            "0163"
            "01"
            "0178"
            "00"
            "0c"
            "00000001"
            "010601010200"
            "0100"
            "01"
            "01"
            "01"
            "06010102");
}

TEST(Signature, EveryValueKindIsRead) {
  const std::string values =
      "00"
      "02"
      "030501"
      "0405"
      "05"
      "06"
      "07"
      "08"
      "09"
      "0a"
      "0b"
      "0c0161"
      "0d020204"
      "0e03"
      "0f0101"
      "1002"
      "0202"
      "11020809"
      "1206"
      "1300"
      "1402"
      "15"
      "16"
      "17000000000000e03f"
      "1802"
      "19000000000000e03f"
      "1a"
      "1b"
      "1d";
  const Signature signature = decoded(key(values, 28));

  EXPECT_EQ(signature.arguments[2].spec.dtype, Dtype::kFloat16);
  EXPECT_TRUE(signature.arguments[2].spec.wrapped);
  EXPECT_EQ(signature.arguments[3].integer, -3);
  EXPECT_EQ(signature.arguments[11].text, "a");
  EXPECT_THAT(signature.arguments[12].integers, ElementsAre(1, 2));
  EXPECT_EQ(signature.arguments[13].count, 3);
  EXPECT_EQ(signature.arguments[15].items.size(), 2);
  EXPECT_THAT(signature.arguments[16].integers, ElementsAre(8, 9));
  EXPECT_EQ(signature.arguments[22].real, 0.5);
}

TEST(Signature, UnknownValueKindsDtypesLayoutsAndFormatsAreRefused) {
  EXPECT_THROW(decoded(key("20", 1)), ProtocolError);
  EXPECT_THROW(decoded(key("1216", 1)), ProtocolError);
  EXPECT_THROW(decoded(key("1306", 1)), ProtocolError);
  EXPECT_THROW(decoded(key("1404", 1)), ProtocolError);
  EXPECT_THROW(decoded(key("11010c", 1)), ProtocolError);
}

TEST(Signature, ATensorAgainNamesOneThatTheKeyHasMentioned) {
  const Signature signature = decoded(key(kVector + "00" + "1c00", 2, "0100"));

  EXPECT_EQ(signature.arguments[1].kind, ValueKind::kAgain);
  EXPECT_EQ(signature.arguments[1].integer, 0);
  EXPECT_THROW(decoded(key(kVector + "00" + "1c01", 2, "0100")), ProtocolError);
  EXPECT_THROW(decoded(key("1c00" + kVector + "00", 2, "0100")), ProtocolError);
}

// kSparse, COO, coalesced, (3, 4): two parts follow.
const std::string kCoo =
    "1e"
    "0101020304";

TEST(Signature, ASparseTensorIsReadWithItsParts) {
  const Signature signature =
      decoded(key(kCoo + kVector + "00" + kVector + "01" + "1f00", 2, "020000"));

  ASSERT_EQ(signature.arguments.size(), 2);
  const Value& sparse = signature.arguments[0];
  EXPECT_EQ(sparse.sparse, (SparseSpec{Layout::kSparseCoo, true, {3, 4}}));
  ASSERT_EQ(sparse.items.size(), 2);
  EXPECT_EQ(sparse.items[1].storage, 1);
  EXPECT_EQ(signature.arguments[1].kind, ValueKind::kSparseAgain);
}

TEST(Signature, ASparseTensorHasGoldenBytes) {
  Writer writer;
  encode(writer, SparseSpec{Layout::kSparseCoo, true, {3, 300}});
  encode(writer, SparseSpec{Layout::kSparseBsc, false, {}});
  EXPECT_EQ(hex(writer.view()),
            "01010203ac02"
            "050000");
}

TEST(Signature, APartOfASparseTensorIsATensorThatTheKeyHas) {
  EXPECT_NO_THROW(decoded(key(kCoo + kVector + "00" + "1c00", 1, "0100")));
  EXPECT_THROW(decoded(key(kCoo + "1c00" + kVector + "00", 1, "0100")), ProtocolError);
  EXPECT_THROW(decoded(key(kCoo + "02" + kVector + "00", 1, "0100")), ProtocolError);
  EXPECT_THROW(decoded(key(kCoo + kCoo, 1, "00")), ProtocolError);
  EXPECT_THROW(decoded(key(kCoo + kVector + "00", 1, "0100")), ProtocolError);
  EXPECT_THROW(decoded(key("1f00", 1)), ProtocolError);
}

TEST(Signature, ASparseTensorOfAnUnknownLayoutFlagOrSizeIsRefused) {
  const std::string parts = kVector + "00" + kVector + "01";
  EXPECT_THROW(decoded(key("1e000000" + parts, 1, "020000")), ProtocolError);
  EXPECT_THROW(decoded(key("1e060000" + parts, 1, "020000")), ProtocolError);
  EXPECT_THROW(decoded(key("1e010200" + parts, 1, "020000")), ProtocolError);
  EXPECT_THROW(decoded(key("1e0200ff" + parts, 1, "020000")), ProtocolError);
  // coalesced, but CSR
  EXPECT_THROW(decoded(key("1e020100" + parts + "1c00", 1, "020000")), ProtocolError);
  // 2⁴⁰ · 2⁴⁰ elements
  const std::string huge = "808080808020";
  EXPECT_THROW(decoded(key("1e010002" + huge + huge + parts, 1, "020000")), ProtocolError);
}

TEST(Signature, AListInsideAListIsRefused) {
  EXPECT_THROW(decoded(key("10011000", 1)), ProtocolError);
}

TEST(Signature, StoragesAreNumberedInOrderOfFirstMention) {
  EXPECT_THROW(decoded(key(kVector + "01", 1, "0100")), ProtocolError);
  EXPECT_THROW(decoded(key(kVector + "00", 1, "020000")), ProtocolError);
  EXPECT_THROW(decoded(key(kVector + "00", 1, "00")), ProtocolError);
}

TEST(Signature, AnOutputCannotNameATensorThatIsNotThere) {
  Output same;
  same.kind = OutputKind::kTensor;
  same.tensor = 1;
  const std::vector<Output> outputs = {same};
  EXPECT_THROW(decoded(key(kVector + "00", 1, "0100"), &outputs), ProtocolError);
}

TEST(Signature, OperatorsAreIntroducedInOrder) {
  const auto key_bytes = from_hex("0500000000");
  SignatureParts parts;
  parts.operator_id = 5;
  parts.key = key_bytes;
  Writer writer;
  encode(writer, parts);
  Reader skipped(writer.view());
  EXPECT_THROW(decode_signature(skipped, 4), ProtocolError);
  Reader known(writer.view());
  EXPECT_FALSE(decode_signature(known, 6).introduction.has_value());
}

TEST(Signature, AKeyOfAnUnknownDeviceOrAnotherLengthIsRefused) {
  EXPECT_THROW(decoded(from_hex("0010000000")), ProtocolError);
  EXPECT_THROW(decoded(from_hex("000000000000")), ProtocolError);
}

TEST(Signature, ASlotOverTheLimitIsRefused) {
  Writer writer;
  writer.varint(kMaxSignatures);
  Reader reader(writer.view());
  EXPECT_THROW(decode_signature(reader, 0), ProtocolError);
}

// --- slots

TEST(Slots, StorageNamesTravelAsDifferencesWithAnOffsetWhenThereIsOne) {
  Writer writer;
  NameState names;
  encode_storage_slot(writer, names, 100, 0);
  encode_storage_slot(writer, names, 99, 7);
  encode_name(writer, names, 101);
  EXPECT_EQ(hex(writer.view()),
            "9003"
            "0307"
            "04");
  Reader reader(writer.view());
  NameState back;
  const StorageSlot first = decode_storage_slot(reader, back);
  const StorageSlot second = decode_storage_slot(reader, back);
  EXPECT_EQ(first.name, 100);
  EXPECT_EQ(first.offset, 0);
  EXPECT_EQ(second.name, 99);
  EXPECT_EQ(second.offset, 7);
  EXPECT_EQ(decode_name(reader, back), 101);
}

}  // namespace
}  // namespace torch_remote::wire
