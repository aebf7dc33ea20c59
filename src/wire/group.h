#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "wire/codec.h"

namespace torch_remote::wire {

// Keys and values that a server brings for one group, in all its answers.
constexpr uint64_t kMaxGroupBytes = 32 << 20;

// Note [Process groups]
//
// A process group is one rank in each of several sessions, mostly of several servers. Its
// collectives are calls of operators (marshal/schemas.h) and run between the servers. The
// client of each rank opens and closes it, by QUERY kGroup:
//
//   query  := group:varint 0:u8 device:u8 rank:varint size:varint timeout:varint address:text  open
//           | group:varint 1:u8 entries                                                  go on
//           | group:varint 2:u8                                                          close
//   answer := is_open:u8 entries n:varint key:text*n
//   entries := n:varint (key:text value:bytes)*n
//
// The engine of a rank (Gloo, NCCL) finds the other ranks through a store of keys and values. The
// servers have none: an answer has what the engine puts into the store, and the keys that it waits
// for; the clients share a store, and the next query brings the values. The last answer has
// `is_open`. An answer to "close" is empty.
enum class GroupAction : uint8_t { kOpen = 0, kGoOn = 1, kClose = 2 };

struct GroupEntry {
  std::string key;
  std::vector<std::byte> value;
  bool operator==(const GroupEntry&) const = default;
};

struct GroupQuery {
  uint64_t group = 0;
  GroupAction action = GroupAction::kOpen;
  uint8_t device = 0;
  uint64_t rank = 0;  // less than size
  uint64_t size = 1;
  uint64_t timeout = 0;             // milliseconds for the opening, and for each collective
  std::string address;              // of this server, where the others reach it: an IP address
  std::vector<GroupEntry> entries;  // kGoOn
};

struct GroupAnswer {
  bool is_open = false;
  std::vector<GroupEntry> entries;   // for the store
  std::vector<std::string> missing;  // keys whose values the engine waits for
};

void encode(Writer& writer, const GroupQuery& query);
GroupQuery decode_group_query(Reader& reader);
void encode(Writer& writer, const GroupAnswer& answer);
GroupAnswer decode_group_answer(Reader& reader);

}  // namespace torch_remote::wire
