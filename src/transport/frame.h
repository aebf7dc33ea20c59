#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

// Frames: what a connection is made of. Integers are little-endian.
//
//   frame    := header payload
//   header   := length:u32        bytes of payload
//               kind:u8           1 messages, 2 bulk, 3 ack, 4 ping, 5 pong, 6 close
//               flags:u8          bit 0 (bulk only): the last chunk of its lane; all others 0
//               reserved:u16      0
//               sequence:u64      messages and bulk: numbered together, 1, 2, 3 ...; the others: 0
//               acknowledged:u64  the highest sequence wholly received from the peer
//               applied:u64       the highest sequence of a messages frame from the peer whose
//                                 effects are done; never more than acknowledged
//   payload  := messages          1 or more bytes, which src/wire explains
//             | bulk              lane:u64 offset:u64 bytes; offset + number of bytes fits 64 bits
//             | close             why, for people: UTF-8, at most 1024 bytes
//             | ack, ping, pong   nothing
//
// What is lost on disconnect: whole frames, those after `acknowledged`. A frame that was cut off
// counts as never sent.
namespace torch_remote::transport {

enum class FrameKind : uint8_t {
  kMessages = 1,
  kBulk = 2,
  kAck = 3,
  kPing = 4,
  kPong = 5,
  kClose = 6,
};

inline constexpr size_t kHeaderSize = 32;
inline constexpr size_t kBulkPrefixSize = 16;
inline constexpr uint32_t kMaxCloseReason = 1024;

// What a messages frame costs an end that keeps it, besides its payload: an entry in one or two
// queues, and the smallest piece of memory. Both ends count it in their limits and windows, so that
// a million frames of one byte are not a million bytes.
inline constexpr uint64_t kFrameCost = 256;

// The largest payload that a peer can make us hold before we check its content.
struct FrameLimits {
  uint32_t messages = uint32_t{16} << 20;
  uint32_t bulk = (uint32_t{4} << 20) + kBulkPrefixSize;
};

struct FrameHeader {
  uint32_t length = 0;
  FrameKind kind = FrameKind::kAck;
  bool last = false;
  uint64_t sequence = 0;
  uint64_t acknowledged = 0;
  uint64_t applied = 0;
};

bool operator==(const FrameHeader& a, const FrameHeader& b);

struct BulkPrefix {
  uint64_t lane = 0;
  uint64_t offset = 0;
};

constexpr bool is_sequenced(FrameKind kind) noexcept {
  return kind == FrameKind::kMessages || kind == FrameKind::kBulk;
}

std::array<std::byte, kHeaderSize> encode_header(const FrameHeader& header) noexcept;
// Throws ProtocolError for every value that encode_header() never writes.
FrameHeader decode_header(std::span<const std::byte, kHeaderSize> bytes, const FrameLimits& limits);

std::array<std::byte, kBulkPrefixSize> encode_bulk_prefix(const BulkPrefix& prefix) noexcept;
// `length` bytes of the lane follow. Throws ProtocolError when offset + length overflows.
BulkPrefix decode_bulk_prefix(std::span<const std::byte, kBulkPrefixSize> bytes, uint64_t length);

// Throws ProtocolError unless the bytes are UTF-8 within the limit.
std::string decode_close_reason(std::span<const std::byte> payload);

// One frame, for tools that have a connection's bytes in memory. The payload points into them.
struct Frame {
  FrameHeader header;
  std::span<const std::byte> payload;
};

// The first frame of `bytes`; nothing when it is incomplete. Throws ProtocolError.
std::optional<Frame> parse_frame(std::span<const std::byte> bytes, const FrameLimits& limits);

}  // namespace torch_remote::transport
