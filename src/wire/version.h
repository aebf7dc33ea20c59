#pragma once

#include <cstdint>

namespace torch_remote::wire {

// Protocol versions, each with a name and what it brought. A connection uses the highest version both
// ends have; an end that shares none with its peer says so and closes.
//
//   1  foundation  2026-11-15  preamble, handshake, signatures and slots, context, generators,
//                              uploads and downloads, frees, queries, poison
//   2  every operator  2026-11-15  a queried call may resize its `out=` tensors, and says how; an error names the
//                              signature that failed; a query for how a call went; settings 26 to 38; generators
//                              copied by name; the context asked for; queries for the server's operators; HEAL, and
//                              failures told unasked, with the number of what failed; a query for what one has done
//                              to storages, and a HEAL that undoes; FREE applies where it stands
//   3  fail-stop   2026-11-16  every message has its length; THREAD and GO_ON in place of HEAL, and a
//                              failure stops its thread; a call with known outputs that is waited for is
//                              one query; a device for each storage of a key, so that a call may span
//                              devices
enum class Version : uint16_t { kFoundation = 1, kEveryOperator = 2, kFailStop = 3 };

constexpr Version kMinVersion = Version::kFailStop;  // no client of an older version was released
constexpr Version kMaxVersion = Version::kFailStop;

}  // namespace torch_remote::wire
