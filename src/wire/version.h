#pragma once

#include <cstdint>

namespace torch_remote::wire {

// Protocol versions, each with a name and what it brought. A connection uses the highest version both
// ends have; an end that shares none with its peer says so and closes.
//
//   1  foundation  2026-11-15  preamble, handshake, signatures and slots, context, generators,
//                              uploads and downloads, frees, queries, poison
enum class Version : uint16_t { kFoundation = 1 };

constexpr Version kMinVersion = Version::kFoundation;
constexpr Version kMaxVersion = Version::kFoundation;

}  // namespace torch_remote::wire
