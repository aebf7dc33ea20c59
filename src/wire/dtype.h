#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace torch_remote::wire {

// Our own numbers: PyTorch's may differ between the client's and the server's version.
enum class Dtype : uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kComplex32 = 8,
  kComplex64 = 9,
  kComplex128 = 10,
  kBool = 11,
  kBfloat16 = 12,
  kUint16 = 13,
  kUint32 = 14,
  kUint64 = 15,
  kFloat8E5M2 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E5M2FNUZ = 18,
  kFloat8E4M3FNUZ = 19,
  kFloat8E8M0FNU = 20,
  kFloat4E2M1FNX2 = 21,
};

constexpr uint8_t kDtypeCount = 22;

constexpr std::array<uint8_t, kDtypeCount> kDtypeBytes = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16,
                                                          1, 2, 2, 4, 8, 1, 1, 1, 1, 1, 1};

inline uint64_t element_bytes(Dtype dtype) {
  return kDtypeBytes[static_cast<uint8_t>(dtype)];
}

inline Dtype checked_dtype(uint8_t value) {
  if (value >= kDtypeCount)
    throw ProtocolError("no dtype " + std::to_string(value));
  return static_cast<Dtype>(value);
}

}  // namespace torch_remote::wire
