#include "wire/memory.h"

#include "base/error.h"
#include "base/text.h"
#include "wire/limits.h"

namespace torch_remote::wire {

void encode(Writer& writer, const MemoryQuery& query) {
  writer.u8(query.device);
  writer.u8(static_cast<uint8_t>(query.action));
}

MemoryQuery decode_memory_query(Reader& reader) {
  MemoryQuery query;
  query.device = reader.u8();
  const uint8_t action = reader.u8();
  if (action > static_cast<uint8_t>(MemoryAction::kResetTotals))
    throw ProtocolError("no memory action " + std::to_string(action));
  query.action = static_cast<MemoryAction>(action);
  return query;
}

void encode(Writer& writer, const MemoryFigures& figures) {
  for (const uint64_t number : {figures.free, figures.total, figures.retries, figures.ooms})
    writer.varint(number);
  writer.varint(figures.stats.size());
  for (const MemoryStat& stat : figures.stats) {
    writer.text(stat.name);
    for (const int64_t number : {stat.current, stat.peak, stat.allocated, stat.freed})
      writer.zigzag(number);
  }
}

MemoryFigures decode_memory_figures(Reader& reader) {
  MemoryFigures figures;
  for (uint64_t* const number : {&figures.free, &figures.total, &figures.retries, &figures.ooms})
    *number = reader.varint();
  for (uint64_t n = reader.count(kMaxMemoryStats, "memory figures"); n > 0; --n) {
    MemoryStat& stat = figures.stats.emplace_back();
    stat.name = readable_line(reader.bytes(kMaxText, "name of a memory figure"));
    for (int64_t* const number : {&stat.current, &stat.peak, &stat.allocated, &stat.freed})
      *number = reader.zigzag();
  }
  return figures;
}

}  // namespace torch_remote::wire
