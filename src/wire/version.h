#pragma once

#include <cstdint>

namespace torch_remote::wire {

// Protocol versions: number, name, date, what it added. A connection uses the highest version that
// both have; without one it is closed with an error.
//
//   1  foundation  2026-11-15  handshake, signatures and slots, context, generators, uploads and
//                              downloads, frees, queries
//   2  every operator  2026-11-15  a reply to a queried call says how `out=` was resized; errors
//                              name signature and call and are sent at once; settings 26 to 38;
//                              queries for the context and the operators
//   3  fail-stop   2026-11-16  every message has its length; a failure stops its thread (THREAD,
//                              GO_ON); QUERY kCheckedCall; each storage of a key has a device
enum class Version : uint16_t { kFoundation = 1, kEveryOperator = 2, kFailStop = 3 };

constexpr Version kMinVersion = Version::kFailStop;  // no client of an older version was released
constexpr Version kMaxVersion = Version::kFailStop;

}  // namespace torch_remote::wire
