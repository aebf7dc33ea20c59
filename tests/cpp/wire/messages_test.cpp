#include "wire/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

using testing::ElementsAre;

// The body of a message: what follows its tag, which is checked.
template <typename Message>
std::vector<std::byte> body_of(const Message& message, Tag tag) {
  Writer writer;
  encode(writer, message);
  std::vector<std::byte> bytes = writer.take();
  EXPECT_EQ(bytes.at(0), static_cast<std::byte>(tag));
  bytes.erase(bytes.begin());
  return bytes;
}

template <typename Decode>
auto decoded(const std::vector<std::byte>& bytes, Decode decode) {
  Reader reader(bytes);
  auto message = decode(reader);
  reader.finish();
  return message;
}

TEST(Messages, AContextComesBackAndHasGoldenBytes) {
  const Context context{{{Setting::kThreads, 4}, {Setting::kDeterministic, 2}}};
  const auto body = body_of(context, Tag::kContext);
  EXPECT_EQ(hex(body), "0201080304");
  EXPECT_EQ(decoded(body, decode_context).settings, context.settings);
  Writer answer;
  encode_settings(answer, context);
  EXPECT_EQ(hex(answer.view()), "0201080304");  // the body of the reply to a query
}

TEST(Messages, EverySettingComesBack) {
  Context context;
  for (uint8_t i = 1; i <= kMaxSetting; ++i)
    context.settings.push_back({static_cast<Setting>(i), -int64_t{i}});
  const auto body = body_of(context, Tag::kContext);
  EXPECT_EQ(decoded(body, decode_context).settings, context.settings);
}

TEST(Messages, AnUnknownSettingIsRefused) {
  EXPECT_THROW(decoded(from_hex("010000"), decode_context), ProtocolError);
  EXPECT_THROW(decoded(from_hex("012700"), decode_context), ProtocolError);
  EXPECT_THROW(decoded(from_hex("27"), decode_context), ProtocolError);
}

TEST(Messages, GeneratorActionsComeBackAndHaveGoldenBytes) {
  const auto seed = body_of(GeneratorMessage{1, GeneratorAction::kSeed, 258, {}}, Tag::kGenerator);
  EXPECT_EQ(hex(seed), "01000201000000000000");
  EXPECT_EQ(decoded(seed, decode_generator).seed, 258);
  const auto state = body_of(GeneratorMessage{20, GeneratorAction::kSetState, 0, from_hex("abcd")},
                             Tag::kGenerator);
  EXPECT_EQ(hex(state), "140102abcd");
  EXPECT_EQ(decoded(state, decode_generator).state, from_hex("abcd"));
  const auto free = body_of(GeneratorMessage{20, GeneratorAction::kFree, 0, {}}, Tag::kGenerator);
  EXPECT_EQ(hex(free), "1402");
  EXPECT_EQ(decoded(free, decode_generator).action, GeneratorAction::kFree);
  const auto make = body_of(GeneratorMessage{21, GeneratorAction::kMake, 1, {}}, Tag::kGenerator);
  EXPECT_EQ(decoded(make, decode_generator).seed, 1);
  const auto copy = body_of(GeneratorMessage{22, GeneratorAction::kCopy, 1, {}}, Tag::kGenerator);
  EXPECT_EQ(hex(copy), "16040100000000000000");
  EXPECT_EQ(decoded(copy, decode_generator).seed, 1);
}

TEST(Messages, AGeneratorWithoutANameOrWithAnUnknownActionIsRefused) {
  EXPECT_THROW(decoded(from_hex("0002"), decode_generator), ProtocolError);
  EXPECT_THROW(decoded(from_hex("0105"), decode_generator), ProtocolError);
}

TEST(Messages, AResizeComesBackAndHasGoldenBytes) {
  const auto body = body_of(Resize{300, 1, 4096}, Tag::kResize);
  EXPECT_EQ(hex(body), "ac02018020");
  const Resize resize = decoded(body, decode_resize);
  EXPECT_EQ(resize.storage, 300);
  EXPECT_EQ(resize.device, 1);
  EXPECT_EQ(resize.nbytes, 4096);
}

TEST(Messages, AResizeOutsideItsLimitsIsRefused) {
  EXPECT_THROW(decoded(from_hex("000000"), decode_resize), ProtocolError);
  EXPECT_THROW(decoded(from_hex("011000"), decode_resize), ProtocolError);
  Writer writer;
  encode(writer, Resize{1, 0, kMaxStorageBytes + 1});
  Reader reader(writer.view().subspan(1));
  EXPECT_THROW(decode_resize(reader), ProtocolError);
}

TEST(Messages, AnInlineBeginCarriesItsBytes) {
  const auto bytes = from_hex("010203");
  Begin begin;
  begin.upload = 9;
  begin.storage = 2;
  begin.offset = 4;
  begin.length = bytes.size();
  begin.is_inline = true;
  begin.bytes = bytes;
  const auto body = body_of(begin, Tag::kBegin);
  EXPECT_EQ(hex(body), "0902040301010203");
  EXPECT_EQ(hex(decoded(body, decode_begin).bytes), "010203");
}

TEST(Messages, ABulkBeginCarriesItsLengthOnly) {
  Begin begin;
  begin.upload = 9;
  begin.storage = 2;
  begin.length = 128;
  const auto body = body_of(begin, Tag::kBegin);
  EXPECT_EQ(hex(body), "090200800100");
  EXPECT_EQ(decoded(body, decode_begin).length, 128);
}

TEST(Messages, AnInlineBeginOverTheLimitIsRefused) {
  Writer writer;
  Begin begin;
  begin.storage = 1;
  begin.length = kMaxInlineBytes + 1;
  begin.is_inline = true;
  encode(writer, begin);
  Reader reader(writer.view().subspan(1));
  EXPECT_THROW(decode_begin(reader), ProtocolError);
}

TEST(Messages, FreesTravelAsDifferences) {
  Writer writer;
  encode_free(writer, std::vector<uint64_t>{100, 101, 99});
  EXPECT_EQ(hex(writer.view()), "0c03c8010203");
  EXPECT_THAT(decoded({writer.view().begin() + 1, writer.view().end()}, decode_free),
              ElementsAre(100, 101, 99));
}

TEST(Messages, MoreFreesThanBytesAreAProtocolError) {
  EXPECT_THROW(decoded(from_hex("ffff03"), decode_free), ProtocolError);
  EXPECT_THROW(decoded(from_hex("ffffff7f"), decode_free), ProtocolError);
}

TEST(Messages, AReadComesBackAndHasGoldenBytes) {
  Read read;
  read.request = 5;
  read.storage = 6;
  read.offset = 7;
  read.spec.sizes = {2};
  read.spec.strides = {1};
  const auto body = body_of(read, Tag::kRead);
  EXPECT_EQ(hex(body), "05060706010102");
  const Read back = decoded(body, decode_read);
  EXPECT_EQ(back.request, 5);
  EXPECT_EQ(back.offset, 7);
  EXPECT_EQ(back.spec, read.spec);
  EXPECT_THROW(decoded(from_hex("00060706010102"), decode_read), ProtocolError);
}

TEST(Messages, QueryKindsAreChecked) {
  EXPECT_EQ(decoded(from_hex("02"), decode_query_kind), QueryKind::kCounters);
  EXPECT_EQ(decoded(from_hex("04"), decode_query_kind), QueryKind::kOutcome);
  EXPECT_EQ(decoded(from_hex("07"), decode_query_kind), QueryKind::kOperator);
  EXPECT_EQ(decoded(from_hex("08"), decode_query_kind), QueryKind::kTaints);
  EXPECT_THROW(decoded(from_hex("09"), decode_query_kind), ProtocolError);
}

TEST(Messages, CountersComeBack) {
  Writer writer;
  encode(writer, Counters{1, 2, 3, 400});
  EXPECT_EQ(hex(writer.view()), "0102039003");
  Reader reader(writer.view());
  EXPECT_EQ(decode_counters(reader).storage_bytes, 400);
}

TEST(Messages, AnErrorComesBackAndHasGoldenBytes) {
  const Error error{ErrorKind::kIndex, 7, "op", "bad", 300, 5};
  Writer writer;
  encode(writer, error);
  EXPECT_EQ(hex(writer.view()), "0107026f7003626164ac0205");
  Reader reader(writer.view());
  const Error back = decode_error(reader);
  EXPECT_EQ(back.kind, ErrorKind::kIndex);
  EXPECT_EQ(back.call, 7);
  EXPECT_EQ(back.operator_name, "op");
  EXPECT_EQ(back.message, "bad");
  EXPECT_EQ(back.signature, 300);
  EXPECT_EQ(back.first, 5);
}

TEST(Messages, AHealComesBackAndHasGoldenBytes) {
  const auto body = body_of(Heal{300, true}, Tag::kHeal);
  EXPECT_EQ(hex(body), "ac0201");
  EXPECT_EQ(decoded(body, decode_heal).cause, 300);
  EXPECT_TRUE(decoded(body, decode_heal).undoes);
  EXPECT_THROW(decoded(from_hex("0000"), decode_heal), ProtocolError);
  EXPECT_THROW(decoded(from_hex("0102"), decode_heal), ProtocolError);
}

TEST(Messages, ATaintQueryComesBackAndHasGoldenBytes) {
  Writer writer;
  encode(writer, TaintQuery{300, {5, 7, 6}});
  EXPECT_EQ(hex(writer.view()), "ac02030a0401");
  Reader reader(writer.view());
  const TaintQuery back = decode_taint_query(reader);
  EXPECT_EQ(back.cause, 300);
  EXPECT_EQ(back.names, (std::vector<uint64_t>{5, 7, 6}));
  EXPECT_THROW(decoded(from_hex("0000"), decode_taint_query), ProtocolError);
}

TEST(Messages, FailuresComeBackAndHaveGoldenBytes) {
  Writer writer;
  encode(writer, Failures{300, {{ErrorKind::kValue, 7, "op", "bad", 1, 0}}});
  EXPECT_EQ(hex(writer.view()), "ac02010207026f70036261640100");
  Reader reader(writer.view());
  const Failures back = decode_failures(reader);
  EXPECT_EQ(back.total, 300);
  ASSERT_EQ(back.errors.size(), 1);
  EXPECT_EQ(back.errors[0].message, "bad");
  EXPECT_THROW(decoded(from_hex("0011"), decode_failures), ProtocolError);
}

TEST(Messages, ALongErrorIsCutByTheSender) {
  Writer writer;
  encode(writer, Error{ErrorKind::kRuntime, 1, "op", std::string(kMaxErrorText + 5, 'x')});
  Reader reader(writer.view());
  EXPECT_EQ(decode_error(reader).message.size(), kMaxErrorText);
}

TEST(Messages, AnUnknownErrorKindIsRefused) {
  EXPECT_THROW(decoded(from_hex("0900000000"), decode_error), ProtocolError);
}

// --- results of a queried call

Result result_of(ResultKind kind) {
  Result result;
  result.kind = kind;
  return result;
}

TEST(Results, EveryKindComesBack) {
  Result fresh = result_of(ResultKind::kFresh);
  fresh.spec.sizes = {2};
  fresh.spec.strides = {1};
  fresh.nbytes = 8;
  Result tensor = result_of(ResultKind::kTensor);
  tensor.tensor = 3;
  Result number = result_of(ResultKind::kInt);
  number.integer = -4;
  Result real = result_of(ResultKind::kFloat);
  real.real = 0.5;
  Result complex = result_of(ResultKind::kScalarComplex);
  complex.real = 1;
  complex.imaginary = -1;
  Result text = result_of(ResultKind::kString);
  text.text = "hi";
  Result list = result_of(ResultKind::kList);
  list.items = {fresh, result_of(ResultKind::kNone)};
  Result resized = result_of(ResultKind::kResized);
  resized.tensor = 2;
  resized.spec = fresh.spec;
  resized.nbytes = 16;
  Writer writer;
  encode(writer, std::vector<Result>{fresh, tensor, number, real, complex, text, list,
                                     result_of(ResultKind::kUndefined), resized});
  Reader reader(writer.view());

  const auto back = decode_results(reader);

  reader.finish();
  ASSERT_EQ(back.size(), 9);
  EXPECT_EQ(back[0].spec, fresh.spec);
  EXPECT_EQ(back[0].nbytes, 8);
  EXPECT_EQ(back[1].tensor, 3);
  EXPECT_EQ(back[2].integer, -4);
  EXPECT_EQ(back[3].real, 0.5);
  EXPECT_EQ(back[4].imaginary, -1);
  EXPECT_EQ(back[5].text, "hi");
  EXPECT_EQ(back[6].items.size(), 2);
  EXPECT_EQ(back[7].kind, ResultKind::kUndefined);
  EXPECT_EQ(back[8].tensor, 2);
  EXPECT_EQ(back[8].spec, fresh.spec);
  EXPECT_EQ(back[8].nbytes, 16);
}

TEST(Results, GoldenBytesOfATensorAndANumber) {
  Result number = result_of(ResultKind::kInt);
  number.integer = 3;
  Result fresh = result_of(ResultKind::kFresh);
  fresh.nbytes = 4;
  Writer writer;
  encode(writer, std::vector<Result>{number, fresh});
  EXPECT_EQ(hex(writer.view()), "0204060106010004");
}

TEST(Results, GoldenBytesOfAResizedTensor) {
  Result resized = result_of(ResultKind::kResized);
  resized.tensor = 2;
  resized.nbytes = 4;
  Writer writer;
  encode(writer, std::vector<Result>{resized});
  EXPECT_EQ(hex(writer.view()), "010a0206010004");
}

TEST(Results, UnknownKindsAndNestedListsAreRefused) {
  EXPECT_THROW(decoded(from_hex("010b"), decode_results), ProtocolError);
  EXPECT_THROW(decoded(from_hex("01070107"), decode_results), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
