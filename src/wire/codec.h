#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torch_remote::wire {

// Numbers are little-endian. `varint` is LEB128, at most ten bytes, in its shortest form. `zigzag`
// maps small negative numbers to small varints.

inline uint64_t to_zigzag(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
}

inline int64_t from_zigzag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

// Appends values to its buffer, which is larger than what is written, so that most writes are a
// compare and a store. Confined to one thread.
class Writer {
 public:
  void u8(uint8_t value) {
    reserve(1);
    bytes_[size_++] = std::byte{value};
  }

  void u32(uint32_t value) { fixed(value); }

  void u64(uint64_t value) { fixed(value); }

  void f64(double value) { fixed(value); }

  void varint(uint64_t value) {
    reserve(10);
    while (value >= 0x80) {
      bytes_[size_++] = std::byte{static_cast<uint8_t>(value | 0x80)};
      value >>= 7;
    }
    bytes_[size_++] = std::byte{static_cast<uint8_t>(value)};
  }

  void zigzag(int64_t value) { varint(to_zigzag(value)); }

  void raw(std::span<const std::byte> value) {
    reserve(value.size());
    if (!value.empty())
      std::memcpy(bytes_.data() + size_, value.data(), value.size());
    size_ += value.size();
  }

  void bytes(std::span<const std::byte> value) {  // varint length, then the bytes
    varint(value.size());
    raw(value);
  }

  void text(std::string_view value) { bytes(std::as_bytes(std::span(value))); }

  size_t size() const { return size_; }

  bool empty() const { return size_ == 0; }

  std::span<const std::byte> view() const { return {bytes_.data(), size_}; }

  void clear() { size_ = 0; }

  void patch_u8(size_t at, uint8_t value) { bytes_[at] = std::byte{value}; }

  // Writes the number of bytes after `at` as a varint to `at`, where one byte was left for it.
  void patch_length(size_t at) {
    const size_t length = size_ - at - 1;
    if (length < 0x80)
      bytes_[at] = std::byte{static_cast<uint8_t>(length)};
    else
      patch_long_length(at, length);
  }

  std::vector<std::byte> take() {
    bytes_.resize(size_);
    size_ = 0;
    return std::move(bytes_);
  }

 private:
  template <typename T>
  void fixed(T value) {
    reserve(sizeof(T));
    std::memcpy(bytes_.data() + size_, &value, sizeof(T));
    size_ += sizeof(T);
  }

  void reserve(size_t count) {
    if (bytes_.size() - size_ < count)
      grow(count);
  }

  void grow(size_t count);
  void patch_long_length(size_t at, size_t length);

  std::vector<std::byte> bytes_;
  size_t size_ = 0;
};

// Reads what Writer wrote. Every read checks its bounds and throws ProtocolError on bytes that
// Writer never produces, because the input comes from the network. Returned views point into the
// input.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> input) : at_(input.data()), end_(at_ + input.size()) {}

  uint8_t u8() {
    need(1);
    return static_cast<uint8_t>(*at_++);
  }

  uint32_t u32() { return fixed<uint32_t>(); }

  uint64_t u64() { return fixed<uint64_t>(); }

  double f64() { return fixed<double>(); }

  uint64_t varint() {
    if (at_ != end_ && static_cast<uint8_t>(*at_) < 0x80)
      return static_cast<uint8_t>(*at_++);
    return long_varint();
  }

  int64_t zigzag() { return from_zigzag(varint()); }

  // A varint that sizes something. Throws ProtocolError, which names `what`, above `limit`.
  uint64_t count(uint64_t limit, const char* what) {
    const uint64_t value = varint();
    if (value > limit)
      refuse_count(value, limit, what);
    return value;
  }

  // The name of a storage, a request or an event. Throws ProtocolError for 0.
  uint64_t name();

  std::span<const std::byte> raw(uint64_t count) {
    need(count);
    const std::span<const std::byte> taken(at_, static_cast<size_t>(count));
    at_ += count;
    return taken;
  }

  std::span<const std::byte> bytes(uint64_t limit, const char* what) {
    return raw(count(limit, what));
  }

  // Throws ProtocolError for what is not UTF-8.
  std::string_view text(uint64_t limit, const char* what);
  // For people: what is not UTF-8 is replaced, so that an error is told although its text is wrong.
  std::string readable_text(uint64_t limit, const char* what);

  bool empty() const { return at_ == end_; }

  std::span<const std::byte> rest() const { return {at_, end_}; }

  // Call last: throws ProtocolError when bytes are left over.
  void finish() const;

 private:
  template <typename T>
  T fixed() {
    need(sizeof(T));
    T value;
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  void need(uint64_t count) const {
    if (count > static_cast<uint64_t>(end_ - at_))
      refuse_short(count);
  }

  uint64_t long_varint();
  [[noreturn]] void refuse_short(uint64_t count) const;
  [[noreturn]] static void refuse_count(uint64_t value, uint64_t limit, const char* what);

  const std::byte* at_;
  const std::byte* end_;
};

}  // namespace torch_remote::wire
