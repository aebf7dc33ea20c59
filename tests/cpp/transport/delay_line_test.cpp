#include "transport/delay_line.h"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "stream_pairs.h"

namespace torch_remote::transport {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

void write_all(Stream& stream, std::span<const std::byte> bytes) {
  stream.write({&bytes, 1});
}

void read_all(Stream& stream, size_t count) {
  std::vector<std::byte> buffer(1 << 20);
  for (size_t done = 0; done < count;) {
    const size_t got =
        stream.read_some(std::span(buffer).first(std::min(buffer.size(), count - done)));
    ASSERT_GT(got, 0U);
    done += got;
  }
}

StreamPair delayed_pair(std::string_view spec) {
  StreamPair pair = memory_pair();
  pair.first = delayed(std::move(pair.first), parse_delay(spec));
  return pair;
}

TEST(DelayLine, EachWayTakesHalfOfTheRoundTrip) {
  auto [ours, theirs] = delayed_pair("100");
  const std::vector<std::byte> one(1);

  const auto start = Clock::now();
  write_all(*ours, one);
  read_all(*theirs, 1);
  const auto there = Clock::now();
  write_all(*theirs, one);
  read_all(*ours, 1);
  const auto back = Clock::now();

  EXPECT_GE(there - start, milliseconds(50));
  EXPECT_GE(back - there, milliseconds(50));
}

TEST(DelayLine, TheDelayAppearsOnceAndNotOncePerWrite) {
  auto [ours, theirs] = delayed_pair("100");
  const std::vector<std::byte> frame(100);
  constexpr size_t kFrames = 1000;  // one after the other they would take 50 s

  const auto start = Clock::now();
  for (size_t i = 0; i < kFrames; ++i)
    write_all(*ours, frame);
  read_all(*theirs, kFrames * frame.size());

  EXPECT_GE(Clock::now() - start, milliseconds(50));
  EXPECT_LT(Clock::now() - start, seconds(25));
}

TEST(DelayLine, ThroughputIsNotLimitedByTheDelay) {
  auto [ours, theirs] = delayed_pair("1000");
  const std::vector<std::byte> bytes(size_t{24} << 20);  // with 1 MiB a round trip: 24 s

  const auto start = Clock::now();
  std::thread writer([stream = ours.get(), &bytes] { write_all(*stream, bytes); });
  read_all(*theirs, bytes.size());
  writer.join();

  EXPECT_LT(Clock::now() - start, seconds(12));
}

TEST(DelayLine, ABandwidthIsKept) {
  auto [ours, theirs] = delayed_pair("0,80");  // 10 bytes a microsecond
  const std::vector<std::byte> bytes(2'000'000);

  const auto start = Clock::now();
  write_all(*ours, bytes);
  read_all(*theirs, bytes.size());

  EXPECT_GE(Clock::now() - start, milliseconds(195));
}

TEST(DelayLine, JitterDoesNotReorder) {
  auto [ours, theirs] = delayed_pair("1,0,3");
  for (int i = 0; i < 200; ++i) {
    const std::vector<std::byte> one(1, static_cast<std::byte>(i));
    write_all(*ours, one);
  }
  for (int i = 0; i < 200; ++i) {
    std::byte got;
    ASSERT_EQ(theirs->read_some({&got, 1}), 1U);
    EXPECT_EQ(got, static_cast<std::byte>(i));
  }
}

TEST(DelayLine, TheEndOfThePeerIsDelayedToo) {
  auto [ours, theirs] = delayed_pair("100");
  const auto start = Clock::now();
  theirs.reset();
  std::byte none;
  EXPECT_EQ(ours->read_some({&none, 1}), 0U);
  EXPECT_GE(Clock::now() - start, milliseconds(50));
}

TEST(DelayLine, DestructionDoesNotWaitForAPeerThatDoesNotRead) {
  StreamPair pair = memory_pair(10);
  auto ours = delayed(std::move(pair.first), parse_delay("1"));
  write_all(*ours, std::vector<std::byte>(1000));
  const auto start = Clock::now();
  ours.reset();
  EXPECT_LT(Clock::now() - start, seconds(20));
}

TEST(DelayLine, ASpecIsParsed) {
  const DelaySpec spec = parse_delay("20.5,1000,2");
  EXPECT_EQ(spec.rtt, std::chrono::microseconds(20500));
  EXPECT_EQ(spec.mbit_s, 1000);
  EXPECT_EQ(spec.jitter, std::chrono::microseconds(2000));
}

TEST(DelayLine, AMalformedSpecIsRefusedWithASentence) {
  for (const char* text : {"", "a", "1,", "1,2,3,4", "-1", "nan", "inf", "1ms", "1e30"})
    EXPECT_THROW(parse_delay(text), std::invalid_argument) << text;
}

}  // namespace
}  // namespace torch_remote::transport
