#include "wire/streams.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/figures.h"
#include "wire/limits.h"
#include "wire/messages.h"

namespace torch_remote::wire {
namespace {

template <typename Decode>
auto decoded(const std::vector<std::byte>& bytes, Decode decode) {
  Reader reader(bytes);
  auto value = decode(reader);
  reader.finish();
  return value;
}

TEST(Streams, MessagesHaveGoldenBytes) {
  Writer writer;
  encode(writer, StreamMessage{StreamAction::kUse, 1, 3});
  encode(writer, StreamMessage{StreamAction::kRecord, 0, 2, 7, true});
  encode(writer, StreamMessage{StreamAction::kRecordStream, 0, 1, 300});
  EXPECT_EQ(hex(writer.view()),
            "0903000103"
            "09050100020701"
            "0905040001ac02");
}

TEST(Streams, AMessageComesBackAndIsChecked) {
  const StreamMessage message = decoded(from_hex("0100020701"), decode_stream);
  EXPECT_EQ(message.action, StreamAction::kRecord);
  EXPECT_EQ(message.stream, 2);
  EXPECT_EQ(message.name, 7);
  EXPECT_TRUE(message.is_timed);
  EXPECT_THROW(decoded(from_hex("050000"), decode_stream), ProtocolError);
  EXPECT_THROW(decoded(from_hex("000041"), decode_stream), ProtocolError);    // stream 65
  EXPECT_THROW(decoded(from_hex("02000000"), decode_stream), ProtocolError);  // event 0
}

TEST(Streams, QueriesAndAnswersComeBack) {
  Writer writer;
  encode_stream_query(writer, {.device = 1, .stream = 4, .waits = true});
  EXPECT_EQ(hex(writer.view()), "010401");
  EXPECT_EQ(decoded(writer.take(), decode_stream_query).stream, 4);
  encode_event_query(writer, {.event = 9});
  EXPECT_EQ(hex(writer.view()), "0900");
  EXPECT_EQ(decoded(writer.take(), decode_event_query).event, 9);
  encode(writer, ElapsedQuery{1, 2});
  EXPECT_EQ(decoded(writer.take(), decode_elapsed_query).second, 2);
  EXPECT_TRUE(decoded(done_answer(true), decode_done));
  EXPECT_EQ(decoded(elapsed_answer(1.5), decode_elapsed), 1.5);
}

TEST(Memory, QueriesAndFiguresComeBackAndAreChecked) {
  Writer writer;
  encode(writer, MemoryQuery{2, MemoryAction::kResetPeaks});
  EXPECT_EQ(hex(writer.view()), "0202");
  EXPECT_EQ(decoded(writer.take(), decode_memory_query).action, MemoryAction::kResetPeaks);
  EXPECT_THROW(decoded(from_hex("0004"), decode_memory_query), ProtocolError);
  encode(writer, MemoryFigures{1, 2, 3, 4, {{"allocated_bytes.all", 5, 6, 7, -8}}});
  const MemoryFigures figures = decoded(writer.take(), decode_memory_figures);
  EXPECT_EQ(figures.ooms, 4);
  ASSERT_EQ(figures.stats.size(), 1);
  EXPECT_EQ(figures.stats[0], (MemoryStat{"allocated_bytes.all", 5, 6, 7, -8}));
  writer.varint(0);
  writer.varint(0);
  writer.varint(0);
  writer.varint(0);
  writer.varint(kMaxMemoryStats + 1);
  EXPECT_THROW(decoded(writer.take(), decode_memory_figures), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
