// A connection whose peer is the test itself, byte by byte: what goes over the wire, and what a
// silent, broken or hostile peer can do.
#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "recording_handler.h"
#include "stream_pairs.h"
#include "transport/connection.h"

namespace torch_remote::transport {
namespace {

struct ReceivedFrame {
  FrameHeader header;
  Bytes payload;
};

class ConnectionPeerTest : public ::testing::Test {
 protected:
  void start(Connection::Options options = {}, StreamPair pair = memory_pair()) {
    connection_ = std::make_unique<Connection>(std::move(pair.first), handler_, options);
    peer_ = std::move(pair.second);
    connection_->start();
  }

  void write(std::span<const std::byte> bytes) { peer_->write({&bytes, 1}); }

  void write(FrameHeader header, std::string_view payload = {}) {
    header.length = static_cast<uint32_t>(payload.size());
    const auto encoded = encode_header(header);
    // In one write: a connection that ends at the header does not wait for the payload.
    write(bytes_of(text_of(encoded) + std::string(payload)));
  }

  bool read(std::span<std::byte> into) {
    for (size_t done = 0; done < into.size();) {
      const size_t got = peer_->read_some(into.subspan(done));
      if (got == 0)
        return false;
      done += got;
    }
    return true;
  }

  std::optional<ReceivedFrame> read_frame() {
    std::array<std::byte, kHeaderSize> header{};
    if (!read(header))
      return std::nullopt;
    ReceivedFrame frame{decode_header(header, FrameLimits()), {}};
    frame.payload.resize(frame.header.length);
    EXPECT_TRUE(read(frame.payload));
    return frame;
  }

  void expect_end(std::string_view words) {
    const std::string end = handler_.wait_for_end();
    EXPECT_NE(end.find(words), std::string::npos) << end;
    EXPECT_EQ(handler_.ends(), 1);
  }

  RecordingHandler handler_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<Stream> peer_;
};

FrameHeader messages(uint64_t sequence) {
  FrameHeader header;
  header.kind = FrameKind::kMessages;
  header.sequence = sequence;
  return header;
}

FrameHeader control(FrameKind kind, uint64_t acknowledged = 0, uint64_t applied = 0) {
  FrameHeader header;
  header.kind = kind;
  header.acknowledged = acknowledged;
  header.applied = applied;
  return header;
}

TEST_F(ConnectionPeerTest, MessagesAndChunksAreNumberedTogether) {
  start();
  handler_.put("x");
  const auto bytes = std::make_shared<Bytes>(3);
  connection_->send_bulk(9, *bytes, bytes, [](bool) {});

  const auto first = read_frame();
  const auto second = read_frame();

  EXPECT_EQ(first->header.kind, FrameKind::kMessages);
  EXPECT_EQ(first->header.sequence, 1U);
  EXPECT_EQ(second->header.kind, FrameKind::kBulk);
  EXPECT_EQ(second->header.sequence, 2U);
  EXPECT_TRUE(second->header.last);
  EXPECT_EQ(second->payload.size(), kBulkPrefixSize + 3);
  EXPECT_EQ(connection_->totals().bytes_sent + connection_->totals().frames_sent, 33U + 51U + 2U);
}

TEST_F(ConnectionPeerTest, MessagesGoBetweenTheChunksOfABulk) {
  start({}, memory_pair(1000));  // so that the writer is still in the first chunk
  const auto bytes = std::make_shared<Bytes>(2 << 20);
  connection_->send_bulk(1, *bytes, bytes, [](bool) {});
  std::array<std::byte, kHeaderSize> first{};
  ASSERT_TRUE(read(first));
  handler_.put("urgent");
  connection_->flush_soon();

  Bytes rest(decode_header(first, FrameLimits()).length);
  ASSERT_TRUE(read(rest));

  EXPECT_EQ(text_of(read_frame()->payload), "urgent");
  EXPECT_EQ(read_frame()->header.kind, FrameKind::kBulk);
}

TEST_F(ConnectionPeerTest, AFewFramesAreAcknowledgedTogetherAfterAMoment) {
  start();
  for (uint64_t sequence = 1; sequence <= 5; ++sequence)
    write(messages(sequence), "m");
  handler_.wait_for_events(5);
  auto ack = read_frame();
  while (ack->header.acknowledged < 5)  // a slow machine may see them in two goes
    ack = read_frame();
  EXPECT_EQ(ack->header.kind, FrameKind::kAck);
  EXPECT_EQ(ack->header.applied, 0U);
  EXPECT_LT(connection_->totals().frames_sent, 5U);
}

TEST_F(ConnectionPeerTest, TheLastChunkIsAcknowledgedAtOnce) {
  start();
  FrameHeader bulk;
  bulk.kind = FrameKind::kBulk;
  bulk.sequence = 1;
  bulk.last = true;
  const auto prefix = encode_bulk_prefix({4, 0});
  const auto before = std::chrono::steady_clock::now();
  write(bulk, text_of(prefix) + "abc");

  const auto ack = read_frame();

  EXPECT_EQ(ack->header.kind, FrameKind::kAck);
  EXPECT_EQ(ack->header.acknowledged, 1U);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(10));
  EXPECT_EQ(text_of(handler_.lane(4)), "abc");
}

TEST_F(ConnectionPeerTest, AppliedTravelsWithTheNextFrame) {
  start();
  write(messages(1), "m");
  handler_.wait_for_events(1);
  connection_->applied(1);
  handler_.put("reply");
  connection_->flush();

  auto frame = read_frame();
  while (frame->header.kind != FrameKind::kMessages)
    frame = read_frame();

  EXPECT_EQ(frame->header.acknowledged, 1U);
  EXPECT_EQ(frame->header.applied, 1U);
}

TEST_F(ConnectionPeerTest, APingIsAnswered) {
  start();
  write(control(FrameKind::kPing));
  EXPECT_EQ(read_frame()->header.kind, FrameKind::kPong);
}

TEST_F(ConnectionPeerTest, ASilentPeerIsPingedAndThenGivenUp) {
  Connection::Options options;
  options.keepalive = std::chrono::milliseconds(150);
  start(options);
  EXPECT_EQ(read_frame()->header.kind, FrameKind::kPing);
  expect_end("no answer from memory for 150 ms");
}

TEST_F(ConnectionPeerTest, APeerThatStopsReadingIsGivenUpToo) {
  Connection::Options options;
  options.keepalive = std::chrono::milliseconds(150);
  start(options, memory_pair(1000));
  const auto bytes = std::make_shared<Bytes>(1 << 20);
  std::promise<bool> acked;
  connection_->send_bulk(1, *bytes, bytes, [&](bool arrived) { acked.set_value(arrived); });
  expect_end("no answer from memory for 150 ms");
  EXPECT_FALSE(acked.get_future().get());
}

TEST_F(ConnectionPeerTest, APeerThatAnswersPingsIsKept) {
  Connection::Options options;
  options.keepalive = std::chrono::milliseconds(300);
  start(options);
  for (int pings = 0; pings < 5; ++pings) {
    const auto ping = read_frame();
    ASSERT_TRUE(ping);
    EXPECT_EQ(ping->header.kind, FrameKind::kPing);
    write(control(FrameKind::kPong));
  }
  EXPECT_EQ(handler_.ends(), 0);
}

TEST_F(ConnectionPeerTest, ACloseFrameEndsItCleanlyWithItsReason) {
  start();
  write(control(FrameKind::kClose), "idle for 10 m");
  EXPECT_EQ(handler_.wait_for_end(), "");
  EXPECT_EQ(connection_->peer_close_reason(), "idle for 10 m");
  EXPECT_FALSE(read_frame());
}

TEST_F(ConnectionPeerTest, ClosingSendsTheReasonWithinItsLimit) {
  start();
  std::string reason(1023, 'a');
  reason += "\xc3\xa4";  // would be cut in the middle
  std::thread closer([&] { connection_->close(reason, std::chrono::seconds(20)); });
  const auto frame = read_frame();
  peer_->shutdown();
  closer.join();
  EXPECT_EQ(frame->header.kind, FrameKind::kClose);
  EXPECT_EQ(text_of(frame->payload), std::string(1023, 'a'));
  EXPECT_EQ(handler_.wait_for_end(), "");
}

TEST_F(ConnectionPeerTest, ClosingDoesNotWaitForeverForAPeerThatDoesNotRead) {
  start({}, memory_pair(10));
  handler_.put("does not fit into ten bytes");
  connection_->close("bye", std::chrono::milliseconds(50));
  expect_end("did not take what was still to be sent within 50 ms");
}

TEST_F(ConnectionPeerTest, AbortWakesAWriterThatIsBlocked) {
  start({}, memory_pair(10));
  const auto bytes = std::make_shared<Bytes>(1000);
  std::promise<bool> acked;
  connection_->send_bulk(1, *bytes, bytes, [&](bool arrived) { acked.set_value(arrived); });
  std::byte first;
  ASSERT_TRUE(read({&first, 1}));  // the writer is in the middle of it
  connection_->abort();
  EXPECT_FALSE(acked.get_future().get());
  expect_end("was ended on this side");
}

TEST_F(ConnectionPeerTest, GarbageIsAProtocolError) {
  start();
  write(Bytes(100, std::byte{0xab}));
  expect_end("protocol: unknown kind of frame 171");
}

TEST_F(ConnectionPeerTest, AnEndInTheMiddleOfAHeaderIsAConnectionError) {
  start();
  const auto header = encode_header(messages(1));
  write(std::span(header).first(10));
  peer_->shutdown();
  expect_end("in the middle of a frame");
}

TEST_F(ConnectionPeerTest, AnEndInTheMiddleOfAPayloadIsAConnectionError) {
  start();
  FrameHeader header = messages(1);
  header.length = 100;
  write(encode_header(header));
  write(Bytes(50));
  peer_->shutdown();
  expect_end("in the middle of a frame");
  EXPECT_TRUE(handler_.wait_for_events(0).empty());
}

TEST_F(ConnectionPeerTest, AGapInTheSequenceIsAProtocolError) {
  start();
  write(messages(1), "one");
  write(messages(3), "three");
  expect_end("protocol: frame 3 came after frame 1");
}

TEST_F(ConnectionPeerTest, ARepeatedFrameIsAProtocolError) {
  start();
  write(messages(1), "one");
  write(messages(1), "one");
  expect_end("protocol: frame 1 came after frame 1");
}

TEST_F(ConnectionPeerTest, AcknowledgingWhatWasNotSentIsAProtocolError) {
  start();
  write(control(FrameKind::kAck, 1));
  expect_end("protocol: the peer acknowledges frame 1");
}

TEST_F(ConnectionPeerTest, AnAcknowledgementThatGoesBackIsAProtocolError) {
  start();
  handler_.put("m");
  connection_->flush();
  read_frame();
  write(control(FrameKind::kAck, 1));
  write(control(FrameKind::kAck, 0));
  expect_end("protocol: the peer acknowledges frame 0 after 1");
}

TEST_F(ConnectionPeerTest, ApplyingABulkFrameIsAProtocolError) {
  start();
  const auto bytes = std::make_shared<Bytes>(1);
  connection_->send_bulk(1, *bytes, bytes, [](bool) {});
  read_frame();
  write(control(FrameKind::kAck, 1, 1));
  expect_end("protocol: the peer says that frame 1");
}

// As in a frame that is sent again.
TEST_F(ConnectionPeerTest, AppliedThatGoesBackIsIgnored) {
  start();
  handler_.put("m");
  connection_->flush();
  read_frame();
  write(control(FrameKind::kAck, 1, 1));
  write(control(FrameKind::kAck, 1, 0));
  write(control(FrameKind::kPing, 1, 0));
  while (read_frame()->header.kind != FrameKind::kPong) {
  }
  EXPECT_EQ(connection_->in_flight().last_applied, 1U);
}

TEST_F(ConnectionPeerTest, AnIdleConnectionSendsNothing) {
  start();
  handler_.put("m");
  connection_->flush();
  read_frame();
  write(control(FrameKind::kAck, 1, 1));
  ASSERT_TRUE(handler_.wait_until([this] { return connection_->in_flight().last_applied == 1; }));
  connection_->abort();
  EXPECT_FALSE(read_frame());
  EXPECT_EQ(connection_->totals().frames_sent, 1U);
}

TEST_F(ConnectionPeerTest, FlushSoonTakesAWholeBatchInOneGo) {
  Connection::Options options;
  options.flush_delay = std::chrono::seconds(3600);
  start(options);
  for (int i = 0; i < 1000; ++i)
    connection_->flush_soon();
  EXPECT_EQ(handler_.takes(), 0);
  handler_.put("m");
  connection_->flush();
  EXPECT_TRUE(read_frame());
  EXPECT_LE(handler_.takes(), 2);
}

TEST_F(ConnectionPeerTest, WhatIsReceivedAndWhatIsAppliedIsCountedInCalls) {
  start();
  handler_.put("one", 3);
  handler_.put("two", 4);
  connection_->flush();
  read_frame();
  read_frame();
  write(control(FrameKind::kAck, 2, 1));
  ASSERT_TRUE(handler_.wait_until([this] { return connection_->in_flight().last_applied == 1; }));
  EXPECT_EQ(connection_->in_flight().calls_received, 7U);
  EXPECT_EQ(connection_->in_flight().calls_applied, 3U);
}

TEST_F(ConnectionPeerTest, WhileThePeerHasSomethingToDoMessagesGatherForLonger) {
  Connection::Options options;
  options.busy_flush_delay = std::chrono::seconds(3600);
  start(options);
  handler_.put("the peer has nothing to do");
  connection_->flush_soon();
  EXPECT_EQ(text_of(read_frame()->payload), "the peer has nothing to do");
  while (handler_.takes() < 2)  // the writer has looked for more, and found nothing
    std::this_thread::yield();

  handler_.put("it has");
  connection_->flush_soon();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(connection_->totals().frames_sent, 1U);
  connection_->flush();
  EXPECT_EQ(text_of(read_frame()->payload), "it has");
}

class TakerHandler : public RecordingHandler {
 public:
  Bytes take_messages(uint32_t& calls) override {
    Bytes taken = RecordingHandler::take_messages(calls);
    if (!taken.empty())
      taker_ = std::this_thread::get_id();
    return taken;
  }

  std::thread::id taker() const { return taker_; }

 private:
  std::atomic<std::thread::id> taker_;
};

class CallersFlushTest : public ConnectionPeerTest {
 protected:
  void start_with_takers(Connection::Options options = {}) {
    StreamPair pair = memory_pair();
    connection_ = std::make_unique<Connection>(std::move(pair.first), takers_, options);
    peer_ = std::move(pair.second);
    connection_->start();
  }

  // Sends a message by flush(), and acknowledges it. True: this thread has written it.
  bool is_written_here(std::string_view text) {
    takers_.put(text);
    connection_->flush();
    EXPECT_EQ(text_of(read_frame()->payload), text);
    ++sent_;
    write(control(FrameKind::kAck, sent_, sent_));
    EXPECT_TRUE(
        takers_.wait_until([this] { return connection_->in_flight().last_applied == sent_; }));
    return takers_.taker() == std::this_thread::get_id();
  }

  // The writer has to come to rest first.
  bool comes_to_be_written_here() {
    const auto deadline = std::chrono::steady_clock::now() + RecordingHandler::kPatience;
    while (std::chrono::steady_clock::now() < deadline)
      if (is_written_here("small"))
        return true;
    return false;
  }

  ~CallersFlushTest() override { connection_.reset(); }  // before its handler

  TakerHandler takers_;
  uint64_t sent_ = 0;
};

TEST_F(CallersFlushTest, WhatIsSmallIsWrittenByTheCallerWhenThePeerHasAcknowledgedAll) {
  start_with_takers();
  EXPECT_TRUE(comes_to_be_written_here());
}

TEST_F(CallersFlushTest, WhatIsLargeIsLeftToTheWriterAndKeepsItsPlace) {
  start_with_takers();
  ASSERT_TRUE(comes_to_be_written_here());
  const std::string large(100'000, 'x');
  takers_.put("before");
  takers_.put(large);
  takers_.put("behind");
  connection_->flush();
  for (const std::string& text : {std::string("before"), large, std::string("behind")})
    EXPECT_EQ(text_of(read_frame()->payload), text);
  EXPECT_NE(takers_.taker(), std::this_thread::get_id());
}

TEST_F(CallersFlushTest, AWriteThatFailsEndsTheConnectionAndNotTheCaller) {
  start_with_takers();
  ASSERT_TRUE(comes_to_be_written_here());
  peer_->shutdown();
  takers_.put("nobody reads this");
  connection_->flush();
  EXPECT_NE(takers_.wait_for_end(), "(still open)");
  EXPECT_EQ(takers_.ends(), 1);
}

class RefusingHandler : public RecordingHandler {
 public:
  std::span<std::byte> bulk_target(uint64_t, uint64_t, uint64_t) override {
    throw ProtocolError("no such lane");
  }
};

TEST(Connection, AHandlerThatRefusesABulkEndsTheConnectionWithItsError) {
  auto [ours, theirs] = memory_pair();
  RefusingHandler handler;
  RecordingHandler peer_handler;
  Connection connection(std::move(ours), handler, {});
  Connection peer(std::move(theirs), peer_handler, {});
  connection.start();
  peer.start();
  const auto bytes = std::make_shared<Bytes>(10);
  peer.send_bulk(1, *bytes, bytes, [](bool) {});
  EXPECT_EQ(handler.wait_for_end(), "protocol: no such lane");
}

TEST(Connection, OneThatWasNeverStartedGivesItsBulksBack) {
  auto [ours, theirs] = memory_pair();
  RecordingHandler handler;
  bool called = false;
  {
    Connection connection(std::move(ours), handler, {});
    connection.send_bulk(1, {}, nullptr, [&](bool arrived) { called = !arrived; });
  }
  EXPECT_TRUE(called);
  EXPECT_EQ(handler.ends(), 0);
}

}  // namespace
}  // namespace torch_remote::transport
