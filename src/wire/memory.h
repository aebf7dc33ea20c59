#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/codec.h"

namespace torch_remote::wire {

// QUERY kMemory: does the action, then answers with the figures of the device.
enum class MemoryAction : uint8_t {
  kAsk = 0,
  kEmptyCache = 1,
  kResetPeaks = 2,
  kResetTotals = 3,
};

struct MemoryQuery {
  uint8_t device = 0;
  MemoryAction action = MemoryAction::kAsk;
};

void encode(Writer& writer, const MemoryQuery& query);
MemoryQuery decode_memory_query(Reader& reader);

// One figure of the server's allocator, with PyTorch's name: "allocated_bytes.all".
struct MemoryStat {
  std::string name;
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;  // sum of all increases
  int64_t freed = 0;      // sum of all decreases
  bool operator==(const MemoryStat&) const = default;
};

// The answer: free:varint total:varint retries:varint ooms:varint n:varint
//             (name:text current:zigzag peak:zigzag allocated:zigzag freed:zigzag)*n
struct MemoryFigures {
  uint64_t free = 0;   // bytes that can still be allocated
  uint64_t total = 0;  // bytes of the device, or what the server's --max-memory leaves of them
  uint64_t retries = 0;
  uint64_t ooms = 0;
  std::vector<MemoryStat> stats;
};

void encode(Writer& writer, const MemoryFigures& figures);
MemoryFigures decode_memory_figures(Reader& reader);

}  // namespace torch_remote::wire
