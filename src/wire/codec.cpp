#include "wire/codec.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "wire/limits.h"

namespace torch_remote::wire {

static_assert(std::endian::native == std::endian::little, "the codec copies numbers as they are");

void Writer::grow(size_t count) {
  bytes_.resize(std::max({bytes_.size() * 2, size_ + count, size_t{256}}));
}

void Writer::patch_long_length(size_t at, size_t length) {
  size_t more = 0;
  for (size_t rest = length >> 7; rest != 0; rest >>= 7)
    ++more;
  reserve(more);
  std::memmove(bytes_.data() + at + 1 + more, bytes_.data() + at + 1, length);
  size_ += more;
  for (size_t i = 0; i < more; ++i, length >>= 7)
    bytes_[at + i] = std::byte{static_cast<uint8_t>(length | 0x80)};
  bytes_[at + more] = std::byte{static_cast<uint8_t>(length)};
}

uint64_t Reader::long_varint() {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const uint64_t byte = u8();
    if (shift == 63 && byte > 1)
      throw ProtocolError("a varint does not fit 64 bits");
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) {
      if (byte == 0 && shift != 0)
        throw ProtocolError("a varint is longer than it needs to be");
      return value;
    }
  }
  throw ProtocolError("a varint has more than ten bytes");
}

uint64_t Reader::name() {
  const uint64_t name = varint();
  if (name == 0)
    throw ProtocolError("name 0 is never valid");
  return name;
}

std::string_view Reader::text(uint64_t limit, const char* what) {
  const auto taken = bytes(limit, what);
  if (!is_utf8(taken))
    throw ProtocolError(std::string(what) + " is not UTF-8");
  return {reinterpret_cast<const char*>(taken.data()), taken.size()};
}

std::string Reader::readable_text(uint64_t limit, const char* what) {
  return readable(bytes(limit, what));
}

void Reader::finish() const {
  if (at_ != end_)
    throw ProtocolError(std::to_string(end_ - at_) + " bytes after the end of the message");
}

void Reader::refuse_short(uint64_t count) const {
  throw ProtocolError("need " + std::to_string(count) + " bytes, have " +
                      std::to_string(end_ - at_));
}

void Reader::refuse_count(uint64_t value, uint64_t limit, const char* what) {
  refuse_over_limit(what, value, limit);
}

}  // namespace torch_remote::wire
