// Any bytes either parse as frames or throw ProtocolError. Nothing else may happen, and what parses
// is what encoding would have made.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "base/error.h"
#include "transport/frame.h"

using namespace torch_remote::transport;

namespace {

void require(bool holds) {
  if (!holds)
    std::abort();
}

void check_round_trip(const Frame& frame, std::span<const std::byte> bytes) {
  const auto header = encode_header(frame.header);
  require(std::memcmp(header.data(), bytes.data(), header.size()) == 0);
  require(frame.payload.data() == bytes.data() + kHeaderSize);
  require(frame.payload.size() == frame.header.length);
  if (frame.header.kind == FrameKind::kClose)
    decode_close_reason(frame.payload);
  if (frame.header.kind != FrameKind::kBulk)
    return;
  const uint64_t length = frame.payload.size() - kBulkPrefixSize;
  const BulkPrefix prefix = decode_bulk_prefix(frame.payload.first<kBulkPrefixSize>(), length);
  require(prefix.offset + length >= prefix.offset);
  const auto encoded = encode_bulk_prefix(prefix);
  require(std::memcmp(encoded.data(), frame.payload.data(), encoded.size()) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const std::byte> rest = std::as_bytes(std::span(data, size));
  try {
    while (const std::optional<Frame> frame = parse_frame(rest, FrameLimits())) {
      check_round_trip(*frame, rest);
      rest = rest.subspan(kHeaderSize + frame->payload.size());
    }
  } catch (const torch_remote::ProtocolError&) {
  }
  return 0;
}
