#include "transport/frame.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace torch_remote::transport {
namespace {

using Bytes = std::array<std::byte, kHeaderSize>;

FrameHeader bulk_header() {
  FrameHeader header;
  header.length = 0x10203;
  header.kind = FrameKind::kBulk;
  header.last = true;
  header.sequence = 0x0102030405060708;
  header.acknowledged = 0x1112131415161718;
  header.applied = 0x0122232425262728;
  return header;
}

FrameHeader header_of(FrameKind kind, uint32_t length) {
  FrameHeader header;
  header.kind = kind;
  header.length = length;
  header.sequence = is_sequenced(kind) ? 1 : 0;
  return header;
}

void expect_refused(const Bytes& bytes) {
  EXPECT_THROW(decode_header(bytes, FrameLimits()), ProtocolError);
}

void expect_refused(const FrameHeader& header) {
  expect_refused(encode_header(header));
}

std::string hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<size_t>(byte >> 4)];
    text += kDigits[std::to_integer<size_t>(byte & std::byte{15})];
  }
  return text;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Frame, TheBytesOfAHeaderAreGolden) {
  EXPECT_EQ(hex(encode_header(bulk_header())),
            "03020100"
            "02"
            "01"
            "0000"
            "0807060504030201"
            "1817161514131211"
            "2827262524232201");
}

TEST(Frame, TheBytesOfABulkPrefixAreGolden) {
  EXPECT_EQ(hex(encode_bulk_prefix({0x0102030405060708, 0x1112131415161718})),
            "08070605040302011817161514131211");
}

TEST(Frame, AHeaderOfEachKindSurvivesTheRoundTrip) {
  EXPECT_EQ(decode_header(encode_header(bulk_header()), FrameLimits()), bulk_header());
  for (const auto& [kind, length] : {std::pair{FrameKind::kMessages, 1U},
                                     {FrameKind::kBulk, 16U},
                                     {FrameKind::kAck, 0U},
                                     {FrameKind::kPing, 0U},
                                     {FrameKind::kPong, 0U},
                                     {FrameKind::kClose, 1024U}}) {
    const FrameHeader header = header_of(kind, length);
    EXPECT_EQ(decode_header(encode_header(header), FrameLimits()), header);
  }
}

TEST(Frame, AnUnknownKindIsRefused) {
  for (int kind = 0; kind < 256; ++kind) {
    Bytes bytes = encode_header(header_of(FrameKind::kAck, 0));
    bytes[4] = static_cast<std::byte>(kind);
    const bool known = kind >= 3 && kind <= 6;  // 1 and 2 want a sequence number
    if (!known)
      expect_refused(bytes);
  }
}

TEST(Frame, ALengthOutsideItsLimitsIsRefused) {
  expect_refused(header_of(FrameKind::kMessages, 0));
  expect_refused(header_of(FrameKind::kMessages, (16U << 20) + 1));
  expect_refused(header_of(FrameKind::kBulk, 15));
  expect_refused(header_of(FrameKind::kBulk, (4U << 20) + 17));
  expect_refused(header_of(FrameKind::kAck, 1));
  expect_refused(header_of(FrameKind::kPing, 1));
  expect_refused(header_of(FrameKind::kPong, 1));
  expect_refused(header_of(FrameKind::kClose, 1025));
}

TEST(Frame, ANarrowerLimitIsKept) {
  FrameLimits limits;
  limits.messages = 4096;
  EXPECT_NO_THROW(decode_header(encode_header(header_of(FrameKind::kMessages, 4096)), limits));
  EXPECT_THROW(decode_header(encode_header(header_of(FrameKind::kMessages, 4097)), limits),
               ProtocolError);
}

TEST(Frame, ReservedBitsThatAreSetAreRefused) {
  for (const size_t at : {size_t{6}, size_t{7}}) {
    Bytes bytes = encode_header(bulk_header());
    bytes[at] = std::byte{1};
    expect_refused(bytes);
  }
  Bytes bytes = encode_header(bulk_header());
  bytes[5] = std::byte{3};
  expect_refused(bytes);
  FrameHeader messages = header_of(FrameKind::kMessages, 1);
  messages.last = true;
  expect_refused(messages);
}

TEST(Frame, ASequenceNumberThatDoesNotFitItsKindIsRefused) {
  FrameHeader messages = header_of(FrameKind::kMessages, 1);
  messages.sequence = 0;
  expect_refused(messages);
  FrameHeader ping = header_of(FrameKind::kPing, 0);
  ping.sequence = 1;
  expect_refused(ping);
}

TEST(Frame, AppliedBeyondAcknowledgedIsRefused) {
  FrameHeader header = header_of(FrameKind::kAck, 0);
  header.acknowledged = 4;
  header.applied = 5;
  expect_refused(header);
}

TEST(Frame, ABulkRangeThatOverflowsIsRefused) {
  const auto prefix = encode_bulk_prefix({1, UINT64_MAX - 9});
  EXPECT_EQ(decode_bulk_prefix(prefix, 9).offset, UINT64_MAX - 9);
  EXPECT_THROW(decode_bulk_prefix(prefix, 10), ProtocolError);
}

TEST(Frame, ACloseReasonMustBeUtf8) {
  EXPECT_EQ(decode_close_reason(bytes_of("bis später")), "bis später");
  EXPECT_THROW(decode_close_reason(bytes_of("\xff")), ProtocolError);
}

TEST(Frame, ParsingTellsAnIncompleteFrameFromAWholeOne) {
  std::vector<std::byte> bytes;
  const auto header = encode_header(header_of(FrameKind::kMessages, 3));
  bytes.insert(bytes.end(), header.begin(), header.end());
  bytes.resize(bytes.size() + 4);

  for (size_t size = 0; size < kHeaderSize + 3; ++size)
    EXPECT_FALSE(parse_frame(std::span(bytes).first(size), FrameLimits())) << size;
  EXPECT_EQ(parse_frame(bytes, FrameLimits())->payload.size(), 3U);
}

}  // namespace
}  // namespace torch_remote::transport
