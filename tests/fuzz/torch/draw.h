#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "wire/codec.h"
#include "wire/spec.h"

// A fuzzer's input as choices, from front to back. After its end every choice is 0, so that the
// begin of an input is also valid.
namespace torch_remote::fuzz {

// kTame: hostile choices are seldom, and tensors and numbers are tiny, so that most calls reach
// their kernel.
enum class Temper : uint8_t { kWild, kTame };

class Draw {
 public:
  explicit Draw(std::span<const std::byte> bytes, Temper temper = Temper::kWild)
      : bytes_(bytes), temper_(temper) {}

  bool empty() const { return bytes_.empty(); }

  bool is_tame() const { return temper_ == Temper::kTame; }

  uint8_t byte() {
    if (bytes_.empty())
      return 0;
    const auto value = static_cast<uint8_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return value;
  }

  uint64_t below(uint64_t end) { return (end > 256 ? wide(2) : byte()) % end; }

  // One time in `n`. From 8 on these are the hostile choices.
  bool rarely(uint8_t n) {
    const bool is_so = byte() % n == n - 1;
    return is_so && (n < 8 || !is_tame() || byte() % 16 == 0);
  }

  // Mostly small; now and then one at which arithmetic breaks.
  uint64_t number() {
    constexpr std::array<uint64_t, 12> kEdges = {
        127,           128,           uint64_t{1} << 16,       uint64_t{1} << 31,
        UINT32_MAX,    1ULL << 32,    uint64_t{1} << 48,       (uint64_t{1} << 48) + 1,
        INT64_MAX / 8, INT64_MAX - 3, uint64_t{INT64_MAX} + 1, UINT64_MAX,
    };
    const uint8_t kind = byte();
    if (is_tame() && kind < 253)
      return kind % (kind < 200 ? 3 : 10);
    if (kind < 224)
      return kind % 10;
    if (kind < 236)
      return wide(2);
    if (kind < 250 || is_tame())
      return kEdges[byte() % kEdges.size()];
    return wide(8);
  }

  int64_t signed_number() {
    const bool negative = rarely(8);
    const auto value = static_cast<int64_t>(number());
    return negative ? static_cast<int64_t>(-static_cast<uint64_t>(value)) : value;
  }

  double real() {
    return rarely(16) ? from_bits(wide(8)) : static_cast<double>(signed_number()) / 4;
  }

  std::span<const std::byte> bytes(size_t most) {
    const uint64_t wanted = is_tame() ? 32 : number();
    const size_t size = std::min<size_t>(std::min<size_t>(wanted, most), bytes_.size());
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }

  std::string text() {
    const auto taken = bytes(64);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

 private:
  uint64_t wide(int count) {
    uint64_t value = 0;
    for (int i = 0; i < count; ++i)
      value |= uint64_t{byte()} << (8 * i);
    return value;
  }

  static double from_bits(uint64_t bits) {
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  std::span<const std::byte> bytes_;
  Temper temper_;
};

// A spec as it stands on the wire: also those that no encoder would write.
inline void draw_spec(Draw& draw, wire::Writer& writer) {
  constexpr std::array<wire::Dtype, 4> kUsual = {wire::Dtype::kFloat32, wire::Dtype::kInt64,
                                                 wire::Dtype::kBool, wire::Dtype::kComplex64};
  if (draw.rarely(8))
    writer.u8(draw.byte());
  else
    writer.u8(static_cast<uint8_t>(kUsual[draw.is_tame() && !draw.rarely(3) ? 0 : draw.below(4)]));
  const uint8_t flags = draw.byte();
  const bool is_contiguous = flags < 192;
  writer.u8(static_cast<uint8_t>((is_contiguous ? 1 : 0) | (flags % 16 < 14 ? 0 : flags & 30)));
  const uint8_t ndim = draw.rarely(64) ? draw.byte() : static_cast<uint8_t>(draw.below(4));
  writer.u8(ndim);
  for (int i = 0; i < ndim * (is_contiguous ? 1 : 2); ++i)
    writer.varint(draw.number());
}

}  // namespace torch_remote::fuzz
