#pragma once

#include <cstdint>
#include <string_view>

#include "wire/signature.h"

namespace torch_remote::wire {

// The parts of a key, in the order in which they are written (signature.h has the grammar). A key
// is made for every call, so there is no Value in between.

// number device environment n. Returns where set_key_device() writes the device.
inline size_t encode_key_head(Writer& key, uint32_t number, uint8_t environment, size_t arguments) {
  key.varint(number);
  const size_t device_at = key.size();
  key.u8(0);
  key.u8(environment);
  key.varint(arguments);
  return device_at;
}

inline void set_key_device(Writer& key, size_t device_at, uint8_t device) {
  key.patch_u8(device_at, device);
}

// A value that is only its kind, or whose number is a slot.
inline void encode_kind(Writer& key, ValueKind kind) {
  key.u8(static_cast<uint8_t>(kind));
}

// kInt, kConstScalarInt.
inline void encode_integer(Writer& key, ValueKind kind, int64_t value) {
  encode_kind(key, kind);
  key.zigzag(value);
}

// kConstFloat, kConstScalarFloat.
inline void encode_real(Writer& key, ValueKind kind, double value) {
  encode_kind(key, kind);
  key.f64(value);
}

inline void encode_string(Writer& key, std::string_view value) {
  encode_kind(key, ValueKind::kString);
  key.text(value);
}

// kDtype, kLayout, kMemoryFormat.
inline void encode_code(Writer& key, ValueKind kind, uint8_t code) {
  encode_kind(key, kind);
  key.u8(code);
}

// `flags`: kSpec…. The strides are written unless they are contiguous.
template <typename Sizes>
void encode_tensor(Writer& key, Dtype dtype, uint8_t flags, const Sizes& sizes,
                   const Sizes& strides, uint32_t storage) {
  encode_code(key, ValueKind::kTensor, static_cast<uint8_t>(dtype));
  key.u8(flags);
  key.u8(static_cast<uint8_t>(sizes.size()));
  for (const int64_t size : sizes)
    key.varint(static_cast<uint64_t>(size));
  if ((flags & kSpecContiguous) == 0)
    for (const int64_t stride : strides)
      key.varint(static_cast<uint64_t>(stride));
  key.varint(storage);
}

// kAgain, kSparseAgain.
inline void encode_again(Writer& key, ValueKind kind, uint64_t tensor) {
  encode_kind(key, kind);
  key.varint(tensor);
}

inline void encode_scalar_tensor(Writer& key, Dtype dtype, bool is_wrapped) {
  encode_code(key, ValueKind::kScalarTensor, static_cast<uint8_t>(dtype));
  key.u8(is_wrapped ? 1 : 0);
}

// A list's kind and length. What follows for each element: kList a value, kIntList and kBoolList
// encode_item(), kScalarList encode_kind(), kFloatList nothing.
inline void encode_list(Writer& key, ValueKind kind, size_t length) {
  encode_kind(key, kind);
  key.varint(length);
}

inline void encode_item(Writer& key, int64_t value) {
  key.zigzag(value);
}

inline void encode_item(Writer& key, bool value) {
  key.u8(value ? 1 : 0);
}

// After the values: how many storages the key mentions, then each.
inline void encode_storage_count(Writer& key, size_t count) {
  key.varint(count);
}

inline void encode_storage(Writer& key, const FreshStorage& storage) {
  key.u8(static_cast<uint8_t>(storage.device << 1 | (storage.fresh ? 1 : 0)));
  if (storage.fresh)
    key.varint(storage.nbytes);
}

}  // namespace torch_remote::wire
