#include "transport/stream.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "stream_pairs.h"

namespace torch_remote::transport {
namespace {

std::vector<std::byte> pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

void write_all(Stream& stream, std::span<const std::byte> bytes) {
  stream.write({&bytes, 1});
}

std::vector<std::byte> read_until_end(Stream& stream) {
  std::vector<std::byte> all;
  std::vector<std::byte> buffer(10000);
  for (size_t got = stream.read_some(buffer); got > 0; got = stream.read_some(buffer))
    all.insert(all.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(got));
  return all;
}

class StreamTest : public ::testing::TestWithParam<StreamKind> {
 protected:
  StreamPair pair_ = GetParam().make();
};

TEST_P(StreamTest, BytesArriveInOrderInBothDirections) {
  const auto there = pattern(3'000'000);
  const auto back = pattern(2'000'000);
  std::vector<std::byte> got_there;
  std::vector<std::byte> got_back;
  Stream* const a = pair_.first.get();
  Stream* const b = pair_.second.get();

  std::thread a_writes([&] { write_all(*a, there); });
  std::thread b_writes([&] { write_all(*b, back); });
  std::thread b_reads([&] {
    got_there.resize(there.size());
    for (size_t done = 0; done < there.size();)
      done += b->read_some(std::span(got_there).subspan(done));
  });
  got_back.resize(back.size());
  for (size_t done = 0; done < back.size();)
    done += a->read_some(std::span(got_back).subspan(done));
  a_writes.join();
  b_writes.join();
  b_reads.join();

  EXPECT_TRUE(got_there == there);
  EXPECT_TRUE(got_back == back);
}

TEST_P(StreamTest, ManyPartsIncludingEmptyOnesAreWrittenInOrder) {
  const auto bytes = pattern(20'000);
  std::vector<std::span<const std::byte>> parts;
  for (size_t at = 0; at < bytes.size(); at += 100) {
    parts.emplace_back();
    parts.push_back(std::span(bytes).subspan(at, 100));
  }

  pair_.first->write(parts);
  pair_.first->shutdown();

  EXPECT_TRUE(read_until_end(*pair_.second) == bytes);
}

TEST_P(StreamTest, WhatWasWrittenBeforeShutdownStillArrives) {
  const auto bytes = pattern(5'000);
  write_all(*pair_.first, bytes);
  pair_.first->shutdown();
  EXPECT_TRUE(read_until_end(*pair_.second) == bytes);
}

TEST_P(StreamTest, WhatWasWrittenBeforeDestructionStillArrives) {
  const auto bytes = pattern(5'000);
  write_all(*pair_.first, bytes);
  pair_.first.reset();
  EXPECT_TRUE(read_until_end(*pair_.second) == bytes);
}

TEST_P(StreamTest, ShutdownWakesABlockedReader) {
  std::thread reader([&] {
    std::byte one;
    EXPECT_EQ(pair_.first->read_some({&one, 1}), 0U);
  });
  pair_.first->shutdown();
  pair_.first->shutdown();
  reader.join();
}

TEST_P(StreamTest, ShutdownWakesABlockedWriter) {
  // More than any buffer holds; the delay line's has 256 MiB.
  const auto bytes = pattern(size_t{16} << 20);
  std::thread writer([&] {
    EXPECT_THROW(
        {
          for (;;)
            write_all(*pair_.first, bytes);
        },
        ConnectionError);
  });
  pair_.first->shutdown();
  writer.join();
}

TEST_P(StreamTest, WritingAfterShutdownIsAConnectionError) {
  pair_.first->shutdown();
  EXPECT_THROW(write_all(*pair_.first, pattern(1)), ConnectionError);
}

TEST_P(StreamTest, WritingToAPeerThatIsGoneIsAConnectionErrorAndNoSignal) {
  pair_.second.reset();
  const auto bytes = pattern(100'000);
  EXPECT_THROW(
      {
        for (;;)
          write_all(*pair_.first, bytes);
      },
      ConnectionError);
}

TEST_P(StreamTest, TheEndOfThePeerEndsReading) {
  pair_.second.reset();
  EXPECT_TRUE(read_until_end(*pair_.first).empty());
}

INSTANTIATE_TEST_SUITE_P(Kinds, StreamTest, ::testing::ValuesIn(kStreamKinds),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace torch_remote::transport
