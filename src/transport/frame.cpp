#include "transport/frame.h"

#include <limits>

#include "base/error.h"
#include "base/text.h"

namespace torch_remote::transport {
namespace {

constexpr uint8_t kLastFlag = 1;

template <typename Integer>
void put(std::span<std::byte> into, size_t at, Integer value) noexcept {
  for (size_t i = 0; i < sizeof(Integer); ++i)
    into[at + i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
}

template <typename Integer>
Integer get(std::span<const std::byte> from, size_t at) noexcept {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i)
    value |= std::to_integer<uint64_t>(from[at + i]) << (8 * i);
  return static_cast<Integer>(value);
}

void require(bool holds, const char* otherwise) {
  if (!holds)
    throw ProtocolError(otherwise);
}

FrameKind decode_kind(uint8_t value) {
  if (value < 1 || value > 6)
    throw ProtocolError("unknown kind of frame " + std::to_string(value));
  return static_cast<FrameKind>(value);
}

struct Bounds {
  uint32_t least;
  uint32_t most;
};

Bounds length_bounds(FrameKind kind, const FrameLimits& limits) noexcept {
  switch (kind) {
    case FrameKind::kMessages:
      return {1, limits.messages};
    case FrameKind::kBulk:
      return {kBulkPrefixSize, limits.bulk};
    case FrameKind::kClose:
      return {0, kMaxCloseReason};
    case FrameKind::kAck:
    case FrameKind::kPing:
    case FrameKind::kPong:
      break;
  }
  return {0, 0};
}

void check_length(const FrameHeader& header, const FrameLimits& limits) {
  const auto [least, most] = length_bounds(header.kind, limits);
  if (header.length >= least && header.length <= most)
    return;
  throw ProtocolError("a frame of kind " + std::to_string(static_cast<int>(header.kind)) + " has " +
                      std::to_string(header.length) + " bytes of payload; from " +
                      std::to_string(least) + " to " + std::to_string(most) + " are allowed");
}

}  // namespace

bool operator==(const FrameHeader& a, const FrameHeader& b) {
  return a.length == b.length && a.kind == b.kind && a.last == b.last && a.sequence == b.sequence &&
         a.acknowledged == b.acknowledged && a.applied == b.applied;
}

std::array<std::byte, kHeaderSize> encode_header(const FrameHeader& header) noexcept {
  std::array<std::byte, kHeaderSize> bytes{};
  put(bytes, 0, header.length);
  put(bytes, 4, static_cast<uint8_t>(header.kind));
  put(bytes, 5, header.last ? kLastFlag : uint8_t{0});
  put(bytes, 8, header.sequence);
  put(bytes, 16, header.acknowledged);
  put(bytes, 24, header.applied);
  return bytes;
}

FrameHeader decode_header(std::span<const std::byte, kHeaderSize> bytes,
                          const FrameLimits& limits) {
  FrameHeader header;
  header.length = get<uint32_t>(bytes, 0);
  header.kind = decode_kind(get<uint8_t>(bytes, 4));
  const auto flags = get<uint8_t>(bytes, 5);
  header.last = flags == kLastFlag;
  header.sequence = get<uint64_t>(bytes, 8);
  header.acknowledged = get<uint64_t>(bytes, 16);
  header.applied = get<uint64_t>(bytes, 24);
  require(flags == 0 || (header.last && header.kind == FrameKind::kBulk),
          "a frame has unknown flags");
  require(get<uint16_t>(bytes, 6) == 0, "a frame's reserved field is not zero");
  require(is_sequenced(header.kind) == (header.sequence != 0),
          "a frame's sequence number does not fit its kind");
  require(header.applied <= header.acknowledged, "a frame says applied what was not received");
  check_length(header, limits);
  return header;
}

std::array<std::byte, kBulkPrefixSize> encode_bulk_prefix(const BulkPrefix& prefix) noexcept {
  std::array<std::byte, kBulkPrefixSize> bytes{};
  put(bytes, 0, prefix.lane);
  put(bytes, 8, prefix.offset);
  return bytes;
}

BulkPrefix decode_bulk_prefix(std::span<const std::byte, kBulkPrefixSize> bytes, uint64_t length) {
  const BulkPrefix prefix{get<uint64_t>(bytes, 0), get<uint64_t>(bytes, 8)};
  require(length <= std::numeric_limits<uint64_t>::max() - prefix.offset,
          "a bulk frame's offset and length overflow");
  return prefix;
}

std::string decode_close_reason(std::span<const std::byte> payload) {
  require(payload.size() <= kMaxCloseReason, "a close frame's reason is too long");
  require(is_utf8(payload), "a close frame's reason is not UTF-8");
  return readable(payload);
}

std::optional<Frame> parse_frame(std::span<const std::byte> bytes, const FrameLimits& limits) {
  if (bytes.size() < kHeaderSize)
    return std::nullopt;
  Frame frame;
  frame.header = decode_header(bytes.first<kHeaderSize>(), limits);
  if (bytes.size() - kHeaderSize < frame.header.length)
    return std::nullopt;
  frame.payload = bytes.subspan(kHeaderSize, frame.header.length);
  if (frame.header.kind == FrameKind::kBulk) {
    decode_bulk_prefix(frame.payload.first<kBulkPrefixSize>(),
                       frame.payload.size() - kBulkPrefixSize);
  }
  if (frame.header.kind == FrameKind::kClose)
    decode_close_reason(frame.payload);
  return frame;
}

}  // namespace torch_remote::transport
