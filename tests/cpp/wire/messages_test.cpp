#include "wire/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

using testing::ElementsAre;

// The body of a message: what follows its tag and length, which are checked.
template <typename Message>
std::vector<std::byte> body_of(const Message& message, Tag tag) {
  Writer writer;
  encode(writer, message);
  Reader reader(writer.view());
  const ReceivedMessage received = next_message(reader);
  EXPECT_EQ(received.tag, tag);
  reader.finish();
  const auto body = received.body.rest();
  return {body.begin(), body.end()};
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
  Reader reader(writer.view());
  ReceivedMessage received = next_message(reader);
  EXPECT_THROW(decode_resize(received.body), ProtocolError);
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
  Reader reader(writer.view());
  ReceivedMessage received = next_message(reader);
  EXPECT_THROW(decode_begin(received.body), ProtocolError);
}

std::vector<uint64_t> frees_in(Reader& reader) {
  std::vector<uint64_t> names;
  decode_free(reader, [&](uint64_t name) { names.push_back(name); });
  return names;
}

TEST(Messages, FreesTravelAsDifferences) {
  Writer writer;
  encode_free(writer, std::vector<uint64_t>{100, 101, 99});
  EXPECT_EQ(hex(writer.view()), "0c0503c8010203");
  EXPECT_THAT(decoded({writer.view().begin() + 2, writer.view().end()}, frees_in),
              ElementsAre(100, 101, 99));
}

TEST(Messages, MoreFreesThanBytesAreAProtocolError) {
  EXPECT_THROW(decoded(from_hex("ffff03"), frees_in), ProtocolError);
  EXPECT_THROW(decoded(from_hex("ffffff7f"), frees_in), ProtocolError);
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

TEST(Messages, AMessageSaysHowLongItIs) {
  Writer writer;
  {
    const Message framed(writer, Tag::kStream);
    writer.raw(std::vector<std::byte>(3, std::byte{7}));
  }
  {
    const Message framed(writer, Tag::kProgram);
    writer.raw(std::vector<std::byte>(300, std::byte{8}));
  }
  encode_thread(writer, 5);
  EXPECT_EQ(hex(writer.view().first(8)), "09030707070fac02");

  Reader reader(writer.view());
  EXPECT_EQ(next_message(reader).body.rest().size(), 3);
  EXPECT_EQ(next_message(reader).body.rest().size(), 300);
  ReceivedMessage last = next_message(reader);
  EXPECT_EQ(last.tag, Tag::kThread);
  EXPECT_EQ(decode_thread(last.body), 5);
  EXPECT_TRUE(reader.empty());
}

TEST(Messages, AMessageThatIsLongerThanItsFrameIsAProtocolError) {
  const auto bytes = from_hex("090407");
  Reader reader(bytes);
  EXPECT_THROW(next_message(reader), ProtocolError);
}

TEST(Messages, AQueryComesBackAndItsKindIsChecked) {
  const Query query = decoded(from_hex("0502"), decode_query);
  EXPECT_EQ(query.request, 5);
  EXPECT_EQ(query.kind, QueryKind::kCounters);
  EXPECT_EQ(decoded(from_hex("0104"), decode_query).kind, QueryKind::kCheckedCall);
  EXPECT_EQ(decoded(from_hex("0107"), decode_query).kind, QueryKind::kOperator);
  EXPECT_EQ(decoded(from_hex("010b"), decode_query).kind, QueryKind::kMemory);
  EXPECT_EQ(decoded(from_hex("010c"), decode_query).kind, QueryKind::kTelemetry);
  EXPECT_EQ(decoded(from_hex("010d"), decode_query).kind, QueryKind::kProfile);
  EXPECT_EQ(decoded(from_hex("010e"), decode_query).kind, QueryKind::kPeer);
  EXPECT_EQ(decoded(from_hex("010f"), decode_query).kind, QueryKind::kGroup);
  EXPECT_EQ(decoded(from_hex("0111"), decode_query).kind, QueryKind::kCachedUpload);
  EXPECT_EQ(decoded(from_hex("0112"), decode_query).kind, QueryKind::kFile);
  EXPECT_THROW(decoded(from_hex("0113"), decode_query), ProtocolError);
  EXPECT_THROW(decoded(from_hex("0002"), decode_query), ProtocolError);
}

TEST(Messages, AQueriedCallComesBackAndHasGoldenBytes) {
  Writer writer;
  encode_queried_call(writer, 7, {300, 5, 2}, [&] { writer.u8(9); });
  EXPECT_EQ(hex(writer.view()), "0e070700ac02050209");
  Reader reader(writer.view());
  Reader body = next_message(reader).body;
  EXPECT_EQ(decode_query(body).kind, QueryKind::kCall);
  const QueriedCall back = decode_queried_call(body);
  EXPECT_EQ(back.index, 300);
  EXPECT_EQ(back.first, 5);
  EXPECT_EQ(back.names, 2);
}

TEST(Messages, CountersComeBack) {
  Writer writer;
  encode(writer, Counters{1, 2, 3, 400});
  EXPECT_EQ(hex(writer.view()), "0102039003");
  Reader reader(writer.view());
  EXPECT_EQ(decode_counters(reader).storage_bytes, 400);
}

TEST(Messages, AnErrorComesBackAndHasGoldenBytes) {
  const Error error{ErrorKind::kIndex, 7, "op", "bad", 300, 5, 3, 6, {8, 9}};
  Writer writer;
  encode(writer, error);
  EXPECT_EQ(hex(writer.view()), "0107026f7003626164ac02050306020809");
  Reader reader(writer.view());
  const Error back = decode_error(reader);
  EXPECT_EQ(back.kind, ErrorKind::kIndex);
  EXPECT_EQ(back.call, 7);
  EXPECT_EQ(back.operator_name, "op");
  EXPECT_EQ(back.message, "bad");
  EXPECT_EQ(back.signature, 300);
  EXPECT_EQ(back.first, 5);
  EXPECT_EQ(back.thread, 3);
  EXPECT_EQ(back.since, 6);
  EXPECT_THAT(back.results, ElementsAre(8, 9));
}

TEST(Messages, AShortageOfMemoryComesBackAndHasGoldenBytes) {
  Error error{ErrorKind::kOutOfMemory, 7, "op", "bad"};
  const std::string head =
      "0507026f7003626164"
      "0000000000";
  error.wanted = 300;
  error.free = 8;
  Writer writer;
  encode(writer, error);
  EXPECT_EQ(hex(writer.view()), head + "0000ac0208");
  Reader reader(writer.view());
  const Error back = decode_error(reader);
  EXPECT_EQ(back.program, 0);
  EXPECT_EQ(back.wanted, 300);
  EXPECT_EQ(back.free, 8);
  error.program = 4;
  error.step = 2;
  Writer in_program;
  encode(in_program, error);
  EXPECT_EQ(hex(in_program.view()), head + "0402ac0208");
  for (const char* wrong : {"0000", "000000", "00000000", "0001ac0208", "04020000"})
    EXPECT_THROW(decoded(from_hex(head + wrong), decode_error), ProtocolError) << wrong;
}

TEST(Messages, ThreadsThatStopAndGoOnHaveGoldenBytes) {
  Writer writer;
  encode_thread(writer, 300);
  encode_go_on(writer, 300);
  EXPECT_EQ(hex(writer.view()), "1602ac021002ac02");
  EXPECT_EQ(decoded(from_hex("ac02"), decode_thread), 300);
  EXPECT_THROW(decoded(from_hex("00"), decode_thread), ProtocolError);
}

TEST(Messages, ProgressAndCancelledCallsHaveGoldenBytes) {
  Writer writer;
  encode_progress(writer, 300);
  encode_cancel(writer, 300);
  EXPECT_EQ(hex(writer.view()), "1902ac021a02ac02");
  EXPECT_EQ(decoded(from_hex("ac02"), decode_progress), 300);
  EXPECT_EQ(decoded(from_hex("ac02"), decode_cancel), 300);
}

TEST(Messages, ACancelIsFoundOnlyAtTheBeginOfAFrame) {
  Writer writer;
  EXPECT_EQ(find_cancel(writer.view()), std::nullopt);
  encode_cancel(writer, 300);
  EXPECT_EQ(find_cancel(writer.view()), 300);
  Writer later;
  encode_thread(later, 1);
  encode_cancel(later, 300);
  EXPECT_EQ(find_cancel(later.view()), std::nullopt);
  EXPECT_THROW(find_cancel(from_hex("1a02ac")), ProtocolError);
  EXPECT_THROW(find_cancel(from_hex("1a00")), ProtocolError);
}

TEST(Messages, RepliesAndErrorsHaveGoldenBytes) {
  Writer writer;
  encode_reply(writer, 4, from_hex("0102"));
  encode_error(writer, 0, Error{ErrorKind::kValue, 7, "op", "bad", 1, 0});
  EXPECT_EQ(hex(writer.view()),
            "11040402010212"
            "0f"
            "000207026f70036261640100000000");
  Reader reader(writer.view());
  ReceivedMessage reply = next_message(reader);
  EXPECT_EQ(decode_reply(reply.body).request, 4);
}

TEST(Messages, ALongErrorIsCutByTheSender) {
  Writer writer;
  encode(writer, Error{ErrorKind::kRuntime, 1, "op", std::string(kMaxErrorText + 5, 'x')});
  Reader reader(writer.view());
  EXPECT_EQ(decode_error(reader).message.size(), kMaxErrorText);
}

TEST(Messages, AnUnknownErrorKindIsRefused) {
  EXPECT_THROW(decoded(from_hex("0a00000000"), decode_error), ProtocolError);
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

TEST(Results, SparseTensorsComeBackAndHaveGoldenBytes) {
  Result part = result_of(ResultKind::kTensor);
  part.tensor = 3;
  Result fresh = result_of(ResultKind::kFresh);
  fresh.nbytes = 4;
  Result sparse = result_of(ResultKind::kSparse);
  sparse.sparse = {Layout::kSparseCoo, true, {2}};
  sparse.items = {part, fresh};
  Result argument = result_of(ResultKind::kSparseTensor);
  argument.tensor = 1;
  Result rewritten = result_of(ResultKind::kRewritten);
  rewritten.tensor = 1;
  rewritten.sparse = {Layout::kSparseCsr, false, {2, 2}};
  rewritten.items = {part, part, fresh};
  Writer writer;
  encode(writer, std::vector<Result>{sparse, argument, rewritten});
  EXPECT_EQ(hex(writer.view()),
            "03"
            "0b01010102"
            "0203"
            "0106010004"
            "0c01"
            "0d010200020202"
            "02030203"
            "0106010004");
  Reader reader(writer.view());

  const auto back = decode_results(reader);

  reader.finish();
  EXPECT_EQ(back[0].sparse, sparse.sparse);
  EXPECT_EQ(back[0].items[1].nbytes, 4);
  EXPECT_EQ(back[2].tensor, 1);
  EXPECT_EQ(back[2].items.size(), 3);
}

TEST(Results, APartOfASparseResultIsATensor) {
  EXPECT_THROW(decoded(from_hex("010b0100000300"), decode_results), ProtocolError);
  EXPECT_THROW(decoded(from_hex("010b0100000b01"), decode_results), ProtocolError);
}

TEST(Results, AreCountedWithThoseInLists) {
  Result list = result_of(ResultKind::kList);
  list.items.assign(kMaxResults / 2, result_of(ResultKind::kNone));
  Writer writer;
  encode(writer, std::vector<Result>{list, list});  // the lists themselves are two too many
  Reader reader(writer.view());
  EXPECT_THROW(decode_results(reader), ProtocolError);
}

TEST(Results, UnknownKindsAndNestedListsAreRefused) {
  EXPECT_THROW(decoded(from_hex("010e"), decode_results), ProtocolError);
  EXPECT_THROW(decoded(from_hex("01070107"), decode_results), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
