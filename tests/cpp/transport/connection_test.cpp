// Two connections that talk to each other, over every kind of stream. What a broken or hostile peer
// does is in connection_peer_test.cpp.
#include "transport/connection.h"

#include <future>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "recording_handler.h"
#include "stream_pairs.h"

namespace torch_remote::transport {
namespace {

class ConnectionTest : public ::testing::TestWithParam<StreamKind> {
 protected:
  void SetUp() override {
    StreamPair pair = GetParam().make();
    a_ = std::make_unique<Connection>(std::move(pair.first), a_handler_, Connection::Options());
    b_ = std::make_unique<Connection>(std::move(pair.second), b_handler_, Connection::Options());
    a_->start();
    b_->start();
  }

  // Sends bytes from a to b; the future tells what on_acked was called with.
  std::future<bool> send(uint64_t lane, const std::shared_ptr<const Bytes>& bytes) {
    auto acked = std::make_shared<std::promise<bool>>();
    a_->send_bulk(lane, *bytes, bytes, [acked](bool arrived) { acked->set_value(arrived); });
    return acked->get_future();
  }

  RecordingHandler a_handler_;
  RecordingHandler b_handler_;
  std::unique_ptr<Connection> a_;
  std::unique_ptr<Connection> b_;
};

std::shared_ptr<const Bytes> pattern(size_t size) {
  auto bytes = std::make_shared<Bytes>(size);
  for (size_t i = 0; i < size; ++i)
    (*bytes)[i] = static_cast<std::byte>(i * 7 + i / 1000);
  return bytes;
}

TEST_P(ConnectionTest, MessagesArriveInOrder) {
  std::vector<std::string> sent;
  for (int i = 0; i < 500; ++i) {
    sent.push_back("message " + std::to_string(i));
    a_handler_.put(sent.back());
    a_->flush_soon();
  }
  EXPECT_EQ(b_handler_.wait_for_events(500), sent);
  EXPECT_EQ(b_handler_.last_sequence(), 500U);
}

TEST_P(ConnectionTest, FlushSendsWhatIsThere) {
  a_handler_.put("hello");
  a_->flush();
  EXPECT_EQ(b_handler_.wait_for_events(1), std::vector<std::string>{"hello"});
}

TEST_P(ConnectionTest, BothDirectionsWorkAtOnce) {
  for (int i = 0; i < 100; ++i) {
    a_handler_.put("there");
    b_handler_.put("back");
    a_->flush_soon();
    b_->flush_soon();
  }
  EXPECT_EQ(b_handler_.wait_for_events(100).size(), 100U);
  EXPECT_EQ(a_handler_.wait_for_events(100).size(), 100U);
}

TEST_P(ConnectionTest, BulkBytesArriveWholeAndAreAcknowledged) {
  const auto bytes = pattern(5'000'000);
  EXPECT_TRUE(send(7, bytes).get());
  EXPECT_TRUE(b_handler_.lane(7) == *bytes);
  EXPECT_EQ(b_handler_.wait_for_events(5).back(), "bulk 7 4194304 805696 last");
}

TEST_P(ConnectionTest, ALaneMayComeInPartsThatAreAcknowledgedOneByOne) {
  const auto first = pattern(1'500'000);
  const auto second = pattern(700'000);
  std::promise<bool> first_acked;
  std::promise<bool> second_acked;
  a_->send_bulk(7, *first, first, [&](bool all) { first_acked.set_value(all); }, {0, false});
  EXPECT_TRUE(first_acked.get_future().get());
  EXPECT_TRUE(send(8, pattern(10)).get());  // another lane, between the parts
  a_->send_bulk(7, *second, second, [&](bool all) { second_acked.set_value(all); },
                {first->size(), true});
  EXPECT_TRUE(second_acked.get_future().get());
  Bytes all = *first;
  all.insert(all.end(), second->begin(), second->end());
  EXPECT_TRUE(b_handler_.lane(7) == all);
  const std::vector<std::string> expected{"bulk 7 0 1048576", "bulk 7 1048576 451424",
                                          "bulk 8 0 10 last", "bulk 7 1500000 700000 last"};
  EXPECT_EQ(b_handler_.wait_for_events(4), expected);
}

TEST_P(ConnectionTest, AnEmptyBulkIsOneChunk) {
  EXPECT_TRUE(send(1, pattern(0)).get());
  EXPECT_EQ(b_handler_.wait_for_events(1), std::vector<std::string>{"bulk 1 0 0 last"});
}

TEST_P(ConnectionTest, AMessageProducedBeforeABulkPrecedesItsFirstChunk) {
  for (uint64_t lane = 0; lane < 50; ++lane) {
    a_handler_.put("begin " + std::to_string(lane));
    send(lane, pattern(10));
  }
  const auto events = b_handler_.wait_for_events(100);
  for (uint64_t lane = 0; lane < 50; ++lane) {
    const auto name = std::to_string(lane);
    const auto begin = std::find(events.begin(), events.end(), "begin " + name);
    const auto chunk = std::find(events.begin(), events.end(), "bulk " + name + " 0 10 last");
    EXPECT_LT(begin, chunk) << name;
  }
}

TEST_P(ConnectionTest, TheOwnerOfABulkIsReleasedWhenItIsAcknowledged) {
  auto bytes = pattern(3'000'000);
  const std::weak_ptr<const Bytes> watch = bytes;
  std::future<bool> acked = send(1, bytes);
  bytes.reset();
  EXPECT_TRUE(acked.get());
  EXPECT_TRUE(watch.expired());
}

TEST_P(ConnectionTest, InFlightCountsWhatThePeerHasNotApplied) {
  a_handler_.put("1234567890", 3);
  a_handler_.put("12345", 2);
  a_->flush();
  b_handler_.wait_for_events(2);
  EXPECT_EQ(a_->in_flight().bytes, 15U + 2 * kFrameCost);
  EXPECT_EQ(a_->in_flight().calls, 5U);
  EXPECT_TRUE(a_handler_.wait_until([this] { return a_->in_flight().calls_received == 5; }));
  EXPECT_EQ(a_->in_flight().calls_applied, 0U);

  b_->applied(1);
  EXPECT_TRUE(a_handler_.wait_until([this] { return a_->in_flight().last_applied == 1; }));
  EXPECT_EQ(a_->in_flight().bytes, 5U + kFrameCost);
  EXPECT_EQ(a_->in_flight().calls, 2U);

  b_->applied(2);
  EXPECT_TRUE(a_handler_.wait_until([this] { return a_->in_flight().last_applied == 2; }));
  EXPECT_EQ(a_->in_flight().bytes, 0U);
  EXPECT_EQ(a_->in_flight().calls, 0U);
  EXPECT_EQ(a_->in_flight().calls_received, 5U);
}

TEST_P(ConnectionTest, CloseDeliversWhatWasQueuedAndEndsBothSidesCleanly) {
  const auto bytes = pattern(2'500'000);
  a_handler_.put("first");
  send(3, bytes);
  a_handler_.put("last");

  a_->close("bye", std::chrono::seconds(20));

  EXPECT_EQ(a_handler_.wait_for_end(), "");
  EXPECT_EQ(b_handler_.wait_for_end(), "");
  EXPECT_EQ(b_->peer_close_reason(), "bye");
  EXPECT_EQ(b_handler_.wait_for_events(5).size(), 5U);
  EXPECT_TRUE(b_handler_.lane(3) == *bytes);
}

TEST_P(ConnectionTest, OnceEndedItGivesItsThreadsAndStreamBackAndCanStillBeAsked) {
  EXPECT_FALSE(a_->release(std::chrono::milliseconds(1)));
  a_->close("bye");
  EXPECT_TRUE(a_->release(std::chrono::seconds(60)));
  a_->flush();
  a_->flush_soon();
  a_->applied(1);
  a_->close("again");
  a_->abort();
  EXPECT_TRUE(a_->is_ending());
  EXPECT_EQ(a_->acknowledged(), 0U);
  EXPECT_FALSE(send(1, pattern(10)).get());
  EXPECT_TRUE(a_->release(std::chrono::milliseconds(1)));
}

TEST_P(ConnectionTest, CloseFromBothSidesAtOnceIsClean) {
  std::thread other([this] { b_->close("b"); });
  a_->close("a");
  other.join();
  EXPECT_EQ(a_handler_.wait_for_end(), "");
  EXPECT_EQ(b_handler_.wait_for_end(), "");
}

TEST_P(ConnectionTest, AbortTellsBothSides) {
  a_->abort();
  EXPECT_NE(a_handler_.wait_for_end().find("was ended on this side"), std::string::npos);
  EXPECT_NE(b_handler_.wait_for_end().find("closed the connection without saying why"),
            std::string::npos);
}

TEST_P(ConnectionTest, ABulkThatIsNotAcknowledgedFailsWhenTheConnectionEnds) {
  a_->abort();
  EXPECT_NE(a_handler_.wait_for_end(), "");
  EXPECT_FALSE(send(1, pattern(10)).get());
}

TEST_P(ConnectionTest, DestructionEndsTheConnectionOnce) {
  a_.reset();
  EXPECT_EQ(a_handler_.ends(), 1);
  EXPECT_NE(b_handler_.wait_for_end(), "(still open)");
  b_.reset();
  EXPECT_EQ(b_handler_.ends(), 1);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ConnectionTest, ::testing::ValuesIn(kStreamKinds),
                         [](const auto& test) { return test.param.name; });

// A stream whose writes return only after open(), although the peer has their bytes before.
class SlowToReturn : public Stream {
 public:
  explicit SlowToReturn(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}

  size_t read_some(std::span<std::byte> into) override { return stream_->read_some(into); }

  void write(std::span<const std::span<const std::byte>> parts) override {
    stream_->write(parts);
    opened_.wait();
  }

  void shutdown() noexcept override { stream_->shutdown(); }

  std::string peer() const override { return stream_->peer(); }

  void open() { open_.set_value(); }

 private:
  std::unique_ptr<Stream> stream_;
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

TEST(Connection, ABulkIsReportedAcknowledgedOnlyAfterItsWriteHasReturned) {
  StreamPair pair = socket_stream_pair();
  auto slow = std::make_unique<SlowToReturn>(std::move(pair.first));
  SlowToReturn& stream = *slow;
  RecordingHandler a_handler;
  RecordingHandler b_handler;
  Connection a(std::move(slow), a_handler, Connection::Options());
  Connection b(std::move(pair.second), b_handler, Connection::Options());
  a.start();
  b.start();
  auto bytes = pattern(1000);
  const std::weak_ptr<const Bytes> watch = bytes;
  const std::span<const std::byte> span = *bytes;
  std::promise<std::pair<bool, bool>> acked;
  a.send_bulk(1, span, std::move(bytes), [&](bool arrived) {
    acked.set_value({arrived, watch.expired()});
  });
  EXPECT_TRUE(a_handler.wait_until([&] { return a.acknowledged() == 1; }));
  EXPECT_FALSE(watch.expired());
  stream.open();
  EXPECT_EQ(acked.get_future().get(), std::pair(true, true));
}

TEST(Connection, AForkedChildCanDestroyItWithoutTouchingTheParents) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow a fork of a process with threads";
#endif
  StreamPair pair = socket_stream_pair();
  RecordingHandler a_handler;
  RecordingHandler b_handler;
  auto a = std::make_unique<Connection>(std::move(pair.first), a_handler, Connection::Options());
  Connection b(std::move(pair.second), b_handler, Connection::Options());
  a->start();
  b.start();

  const pid_t child = ::fork();
  if (child == 0) {
    a->abandon_in_forked_child();
    a->flush_soon();
    a->flush();
    a->close("from the child");
    a.reset();
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);

  a_handler.put("still here");
  a->flush();
  EXPECT_EQ(b_handler.wait_for_events(1), std::vector<std::string>{"still here"});
}

}  // namespace
}  // namespace torch_remote::transport
