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
enum class Version : uint16_t { kFoundation = 1, kEveryOperator = 2 };

constexpr Version kMinVersion = Version::kEveryOperator;  // no client of version 1 was released
constexpr Version kMaxVersion = Version::kEveryOperator;

}  // namespace torch_remote::wire
