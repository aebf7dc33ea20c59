// Connections that go on over another stream when theirs breaks: nothing is lost, nothing comes
// twice.
#include <array>
#include <atomic>
#include <future>
#include <limits>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "recording_handler.h"
#include "transport/connection.h"
#include "transport/memory_stream.h"

namespace torch_remote::transport {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kStep = 7;  // ThreadSanitizer takes sixty times as long
#else
constexpr uint64_t kStep = 1;
#endif
constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

// Passes so many bytes on, and then cuts the line in the middle of a write.
class CutStream : public Stream {
 public:
  CutStream(std::unique_ptr<Stream> inner, uint64_t bytes)
      : inner_(std::move(inner)), left_(bytes) {}

  size_t read_some(std::span<std::byte> into) override { return inner_->read_some(into); }

  void write(std::span<const std::span<const std::byte>> parts) override {
    for (std::span<const std::byte> part : parts) {
      const bool is_cut = part.size() > left_;
      part = part.first(is_cut ? left_ : part.size());
      if (left_ != kNever)
        left_ -= part.size();
      inner_->write({&part, 1});
      if (is_cut) {
        inner_->shutdown();
        throw ConnectionError("the line was cut");
      }
    }
  }

  void shutdown() noexcept override { inner_->shutdown(); }

  std::string peer() const override { return "the other end"; }

 private:
  const std::unique_ptr<Stream> inner_;
  uint64_t left_;  // writer's thread
};

// One of two ends. The first one dials again, the second waits for it.
class End : public RecordingHandler {
 public:
  using Redial = std::function<void(uint64_t received)>;

  void start(std::unique_ptr<Stream> stream, Redial redial = nullptr) {
    Connection::Options options;
    options.is_resumable = true;
    options.keepalive = {};  // its frames would repeat what a test waits for
    redial_ = std::move(redial);
    connection = std::make_unique<Connection>(std::move(stream), *this, options);
    connection->start();
  }

  void on_messages(uint64_t sequence, Bytes payload) override {
    RecordingHandler::on_messages(sequence, std::move(payload));
    connection->applied(sequence);
  }

  void on_broken(std::exception_ptr /*cause*/, uint64_t received) override {
    ++breaks;
    if (redial_)
      redial_(received);
  }

  std::future<bool> send_bulk(uint64_t lane, const Bytes& bytes) {
    auto acked = std::make_shared<std::promise<bool>>();
    auto owner = std::make_shared<const Bytes>(bytes);
    connection->send_bulk(lane, *owner, owner, [acked](bool done) { acked->set_value(done); });
    return acked->get_future();
  }

  std::atomic<int> breaks = 0;
  std::unique_ptr<Connection> connection;

 private:
  Redial redial_;
};

// What each link lets through, in each direction.
struct Cut {
  uint64_t there = kNever;
  uint64_t back = kNever;
};

// Two ends with a line that is cut as `next_cut` says, link after link.
class Line {
 public:
  explicit Line(std::function<Cut()> next_cut) : next_cut_(std::move(next_cut)) {
    auto [first, second] = make_link();
    b.start(std::move(second));
    a.start(std::move(first), [this](uint64_t received) { redial(received); });
  }

  ~Line() {
    a.connection->abort();
    b.connection->abort();
  }

  End a;
  End b;

 private:
  std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>> make_link() {
    auto [first, second] = memory_pair();
    const Cut cut = next_cut_();
    return {std::make_unique<CutStream>(std::move(first), cut.there),
            std::make_unique<CutStream>(std::move(second), cut.back)};
  }

  void redial(uint64_t received) {
    const auto cause = std::make_exception_ptr(ConnectionError("the other end dialed again"));
    const std::optional<uint64_t> theirs = b.connection->suspend(cause);
    if (!theirs)
      return;
    auto [first, second] = make_link();
    EXPECT_TRUE(b.connection->resume(std::move(second), received));
    EXPECT_TRUE(a.connection->resume(std::move(first), *theirs));
  }

  const std::function<Cut()> next_cut_;
};

Bytes pattern(size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + 5);
  return bytes;
}

// Messages and a bulk, each way at once.
void expect_everything_once(Line& line, int messages, size_t bulk) {
  std::vector<std::string> expected;
  for (int i = 0; i < messages; ++i) {
    expected.push_back("message " + std::to_string(i));
    for (End* end : {&line.a, &line.b}) {
      end->put(expected.back());
      end->connection->flush_soon();
    }
  }
  const Bytes bytes = pattern(bulk);
  std::future<bool> there = line.a.send_bulk(7, bytes);
  std::future<bool> back = line.b.send_bulk(7, bytes);
  expected.push_back("bulk 7 0 " + std::to_string(bulk) + " last");
  for (std::future<bool>* acked : {&there, &back}) {
    ASSERT_EQ(acked->wait_for(RecordingHandler::kPatience), std::future_status::ready);
    EXPECT_TRUE(acked->get());
  }
  for (End* end : {&line.a, &line.b}) {
    EXPECT_EQ(end->wait_for_events(expected.size()), expected);
    EXPECT_TRUE(end->lane(7) == bytes);
    EXPECT_EQ(end->last_sequence(), static_cast<uint64_t>(messages));
    EXPECT_TRUE(end->wait_until([&] { return end->connection->in_flight().bytes == 0; }));
    EXPECT_EQ(end->connection->in_flight().last_applied, static_cast<uint64_t>(messages));
    EXPECT_EQ(end->ends(), 0);
  }
}

Line cut_once(Cut first) {
  return Line([first, is_first = true]() mutable {
    return std::exchange(is_first, false) ? first : Cut{};
  });
}

uint64_t bytes_of_an_uncut_exchange() {
  Line line([] { return Cut{}; });
  expect_everything_once(line, 2, 20);
  return std::max(line.a.connection->totals().bytes_sent, line.b.connection->totals().bytes_sent);
}

TEST(ConnectionResume, ACutAtAnyByteOfEitherDirectionLosesAndRepeatsNothing) {
  const uint64_t bytes = bytes_of_an_uncut_exchange();
  ASSERT_GT(bytes, 120U);
  for (uint64_t at = 0; at < bytes; at += kStep) {
    SCOPED_TRACE("cut after byte " + std::to_string(at));
    Line there = cut_once({at, kNever});
    expect_everything_once(there, 2, 20);
    Line back = cut_once({kNever, at});
    expect_everything_once(back, 2, 20);
    if (HasFailure())
      return;
  }
}

TEST(ConnectionResume, LinksThatEachBreakAfterAFewFramesMoveEverything) {
  std::mt19937 random(1);
  Line line([&random] {
    std::uniform_int_distribution<uint64_t> bytes(50, 400);
    return Cut{bytes(random), bytes(random)};
  });
  expect_everything_once(line, 200, 300);
  EXPECT_GT(line.a.breaks, 20);
}

TEST(ConnectionResume, ABulkOfManyChunksIsCutBetweenAndInsideThem) {
  for (const uint64_t at : {uint64_t{100'000}, uint64_t{1'048'640}, uint64_t{2'500'000}}) {
    Line line = cut_once({at, at});
    const Bytes bytes = pattern(3'000'000);
    std::future<bool> acked = line.a.send_bulk(1, bytes);
    ASSERT_EQ(acked.wait_for(RecordingHandler::kPatience), std::future_status::ready);
    EXPECT_TRUE(acked.get());
    EXPECT_TRUE(line.b.lane(1) == bytes);
    EXPECT_EQ(line.b.wait_for_events(3).size(), 3U);
  }
}

TEST(ConnectionResume, ALaneInPartsIsCutBetweenAndInsideThem) {
  for (const uint64_t at : {uint64_t{100'000}, uint64_t{1'000'080}, uint64_t{2'500'000}}) {
    Line line = cut_once({at, at});
    const Bytes bytes = pattern(3'000'000);
    std::promise<bool> acked;
    for (size_t begin = 0; begin < bytes.size(); begin += 1'000'000) {
      const auto begins = bytes.begin() + static_cast<ptrdiff_t>(begin);
      const auto part = std::make_shared<const Bytes>(begins, begins + 1'000'000);
      const bool is_last = begin == 2'000'000;
      line.a.connection->send_bulk(
          1, *part, part, [&acked, is_last](bool all) { is_last ? acked.set_value(all) : void(); },
          {begin, is_last});
    }
    std::future<bool> future = acked.get_future();
    ASSERT_EQ(future.wait_for(RecordingHandler::kPatience), std::future_status::ready);
    EXPECT_TRUE(future.get());
    EXPECT_TRUE(line.b.lane(1) == bytes);
    EXPECT_EQ(line.b.wait_for_events(3).back(), "bulk 1 2000000 1000000 last");
  }
}

TEST(ConnectionResume, WhatIsSubmittedWhileBrokenGoesOutAfterwards) {
  auto [first, second] = memory_pair();
  auto [next_first, next_second] = memory_pair();
  End a;
  End b;
  b.start(std::move(second));
  a.start(std::make_unique<CutStream>(std::move(first), 0));
  a.put("one");
  a.connection->flush();
  const auto cause = std::make_exception_ptr(ConnectionError("test"));
  ASSERT_EQ(a.connection->suspend(cause), 0U);
  ASSERT_EQ(b.connection->suspend(cause), 0U);
  a.put("two");
  a.connection->flush();
  std::future<bool> acked = a.send_bulk(3, pattern(5));
  EXPECT_TRUE(b.connection->resume(std::move(next_second), 0));
  EXPECT_TRUE(a.connection->resume(std::move(next_first), 0));
  EXPECT_TRUE(acked.get());
  EXPECT_EQ(b.wait_for_events(3), (std::vector<std::string>{"one", "two", "bulk 3 0 5 last"}));
}

// Takes what is written and passes nothing on.
class SwallowingStream : public CutStream {
 public:
  using CutStream::CutStream;

  void write(std::span<const std::span<const std::byte>> /*parts*/) override {}
};

TEST(ConnectionResume, AfterFramesSentAgainThePeerLearnsWhatWasAppliedMeanwhile) {
  auto [first, second] = memory_pair();
  auto [next_first, next_second] = memory_pair();
  End a;
  End b;
  b.start(std::make_unique<SwallowingStream>(std::move(second), kNever));
  a.start(std::move(first));
  const auto wait_until = [&](const std::function<bool()>& is_so) {
    const auto deadline = std::chrono::steady_clock::now() + RecordingHandler::kPatience;
    while (!is_so() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return is_so();
  };
  b.put("answer");
  b.connection->flush();
  // Else one frame could have both the answer and the acknowledgement of the call.
  ASSERT_TRUE(wait_until([&] { return b.connection->totals().frames_sent == 1; }));
  a.put("call", 1);
  a.connection->flush();
  b.wait_for_events(1);  // and says that it is applied
  ASSERT_TRUE(wait_until([&] { return b.connection->totals().frames_sent == 2; }));
  const auto cause = std::make_exception_ptr(ConnectionError("test"));
  ASSERT_EQ(a.connection->suspend(cause), 0U);
  ASSERT_EQ(b.connection->suspend(cause), 1U);
  EXPECT_TRUE(b.connection->resume(std::move(next_second), 0));
  EXPECT_TRUE(a.connection->resume(std::move(next_first), 1));
  EXPECT_TRUE(wait_until([&] { return a.connection->in_flight().last_applied == 1; }));
}

TEST(ConnectionResume, ASilentPeerBreaksTheLinkAndDoesNotEndTheConnection) {
  auto [first, second] = memory_pair();
  std::promise<std::string> broken;

  class Silent : public End {
   public:
    explicit Silent(std::promise<std::string>& broken) : broken_(broken) {}

    void on_broken(std::exception_ptr cause, uint64_t /*received*/) override {
      try {
        std::rethrow_exception(std::move(cause));
      } catch (const ConnectionError& error) {
        broken_.set_value(error.what());
      }
    }

   private:
    std::promise<std::string>& broken_;
  } handler(broken);

  Connection::Options options;
  options.is_resumable = true;
  options.keepalive = std::chrono::milliseconds(60);
  handler.connection = std::make_unique<Connection>(std::move(first), handler, options);
  handler.connection->start();
  EXPECT_NE(broken.get_future().get().find("no answer from"), std::string::npos);
  EXPECT_EQ(handler.ends(), 0);
  EXPECT_FALSE(handler.connection->is_ending());
}

TEST(ConnectionResume, AnExceptionFromOnBrokenEndsTheConnectionWithIt) {
  class GivesUp : public End {
    void on_broken(std::exception_ptr /*cause*/, uint64_t /*received*/) override {
      throw ConnectionError("the lease is over");
    }
  } a;

  auto [first, second] = memory_pair();
  a.start(std::move(first));
  std::future<bool> acked = a.send_bulk(1, pattern(10));
  second->shutdown();
  EXPECT_EQ(a.wait_for_end(), "the lease is over");
  EXPECT_FALSE(acked.get());
}

TEST(ConnectionResume, AbortAndCloseEndABrokenConnection) {
  for (const bool by_close : {false, true}) {
    End a;
    auto [first, second] = memory_pair();
    a.start(std::move(first));
    const auto cause = std::make_exception_ptr(ConnectionError("test"));
    ASSERT_TRUE(a.connection->suspend(cause));
    if (by_close)
      a.connection->close("done", std::chrono::milliseconds(20));
    else
      a.connection->abort();
    EXPECT_NE(a.wait_for_end(), "(still open)");
    EXPECT_FALSE(a.connection->suspend(cause));
    EXPECT_FALSE(a.connection->resume(std::move(second), 0));
  }
}

TEST(ConnectionResume, APeerThatClaimsMoreThanWasSentOrLessThanItAcknowledgedIsRefused) {
  auto [first, second] = memory_pair();
  End a;
  End b;
  b.start(std::move(second));
  a.start(std::move(first));
  a.put("one");
  a.connection->flush();
  ASSERT_TRUE(a.wait_until([&] { return a.connection->acknowledged() == 1; }));
  const auto cause = std::make_exception_ptr(ConnectionError("test"));
  ASSERT_TRUE(a.connection->suspend(cause));
  EXPECT_THROW(a.connection->resume(memory_pair().first, 2), ProtocolError);
  EXPECT_THROW(a.connection->resume(memory_pair().first, 0), ProtocolError);
  EXPECT_TRUE(a.connection->resume(memory_pair().first, 1));
}

TEST(ConnectionResume, APeerThatBreaksTheProtocolEndsTheConnection) {
  auto [first, second] = memory_pair();
  End a;
  a.start(std::move(first));
  const Bytes rubbish(kHeaderSize, std::byte{0xff});
  const std::span<const std::byte> bytes = rubbish;
  second->write({&bytes, 1});
  EXPECT_NE(a.wait_for_end().find("protocol"), std::string::npos);
  EXPECT_EQ(a.breaks, 0);
}

TEST(ConnectionResume, AConnectionThatIsNotResumableEndsWithTheFirstBreak) {
  auto [first, second] = memory_pair();
  RecordingHandler handler;
  Connection connection(std::move(first), handler, {});
  connection.start();
  second->shutdown();
  EXPECT_NE(handler.wait_for_end().find("without saying why"), std::string::npos);
}

}  // namespace
}  // namespace torch_remote::transport
