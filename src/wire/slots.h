#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "base/error.h"
#include "wire/codec.h"

namespace torch_remote::wire {

// Note [Slots]
//
// What differs between two calls of one signature, in the order of the key:
//
//   tensor, its storage not yet mentioned in this call:
//       (zigzag(name - previous) << 1 | has_offset):varint [offset:varint]     in elements
//   tensor, its storage mentioned before:  offset:varint
//   numbers, generators: as ValueKind says
//   then for each fresh output:            zigzag(name - previous)
//
// `previous` is the storage name written last in the same frame, 0 at its start.
struct NameState {
  uint64_t previous = 0;
};

inline void encode_storage_slot(Writer& writer, NameState& state, uint64_t name, uint64_t offset) {
  const uint64_t delta = to_zigzag(static_cast<int64_t>(name - state.previous));
  writer.varint(delta << 1 | (offset != 0 ? 1 : 0));
  if (offset != 0)
    writer.varint(offset);
  state.previous = name;
}

struct StorageSlot {
  uint64_t name;
  uint64_t offset;
};

inline StorageSlot decode_storage_slot(Reader& reader, NameState& state) {
  const uint64_t code = reader.varint();
  state.previous += static_cast<uint64_t>(from_zigzag(code >> 1));
  return {state.previous, code & 1 ? reader.varint() : 0};
}

// A further tensor of a storage that the same call has mentioned before.
inline void encode_offset(Writer& writer, uint64_t offset) {
  writer.varint(offset);
}

inline uint64_t decode_offset(Reader& reader) {
  return reader.varint();
}

// The name of a fresh output.
inline void encode_name(Writer& writer, NameState& state, uint64_t name) {
  writer.zigzag(static_cast<int64_t>(name - state.previous));
  state.previous = name;
}

inline uint64_t decode_name(Reader& reader, NameState& state) {
  state.previous += static_cast<uint64_t>(reader.zigzag());
  return state.previous;
}

// A number, by its type: double f64, int64_t zigzag, uint64_t varint (also the name of a
// generator), bool u8. A complex number is two doubles.
template <typename T>
void encode_number(Writer& writer, T value) {
  if constexpr (std::is_same_v<T, double>)
    writer.f64(value);
  else if constexpr (std::is_same_v<T, int64_t>)
    writer.zigzag(value);
  else if constexpr (std::is_same_v<T, uint64_t>)
    writer.varint(value);
  else {
    static_assert(std::is_same_v<T, bool>);
    writer.u8(value ? 1 : 0);
  }
}

template <typename T>
T decode_number(Reader& reader) {
  if constexpr (std::is_same_v<T, double>)
    return reader.f64();
  else if constexpr (std::is_same_v<T, int64_t>)
    return reader.zigzag();
  else if constexpr (std::is_same_v<T, uint64_t>)
    return reader.varint();
  else {
    static_assert(std::is_same_v<T, bool>);
    const uint8_t value = reader.u8();
    if (value > 1)
      throw ProtocolError("a truth value is neither 0 nor 1");
    return value != 0;
  }
}

// The element of a kScalarTensor.
inline void encode_element(Writer& writer, std::span<const std::byte> bytes) {
  writer.raw(bytes);
}

inline std::span<const std::byte> decode_element(Reader& reader, uint64_t bytes) {
  return reader.raw(bytes);
}

// Slots that were encoded before.
inline void append_slots(Writer& writer, std::span<const std::byte> slots) {
  writer.raw(slots);
}

}  // namespace torch_remote::wire
