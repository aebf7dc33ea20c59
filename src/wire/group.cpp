#include "wire/group.h"

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

void encode_entries(Writer& writer, const std::vector<GroupEntry>& entries) {
  writer.varint(entries.size());
  for (const GroupEntry& entry : entries) {
    writer.text(entry.key);
    writer.bytes(entry.value);
  }
}

std::string decode_key(Reader& reader) {
  return std::string(reader.text(kMaxGroupKey, "key of a process group"));
}

std::vector<GroupEntry> decode_entries(Reader& reader) {
  std::vector<GroupEntry> entries;
  for (uint64_t n = reader.count(kMaxGroupEntries, "entries of a process group"); n > 0; --n) {
    GroupEntry& entry = entries.emplace_back();
    entry.key = decode_key(reader);
    const auto value = reader.bytes(kMaxGroupValue, "value of a process group");
    entry.value.assign(value.begin(), value.end());
  }
  return entries;
}

void decode_rank(Reader& reader, GroupQuery& query) {
  query.device = reader.u8();
  query.rank = reader.varint();
  query.size = reader.count(kMaxGroupSize, "ranks of a process group");
  if (query.rank >= query.size)
    throw ProtocolError("rank " + std::to_string(query.rank) + " of a process group of " +
                        std::to_string(query.size));
  query.timeout = reader.count(kMaxGroupTimeout, "timeout of a process group");
  if (query.timeout == 0)
    throw ProtocolError("a process group without a timeout");
  query.address = reader.text(kMaxGroupKey, "address of a server");
}

}  // namespace

void encode(Writer& writer, const GroupQuery& query) {
  writer.varint(query.group);
  writer.u8(static_cast<uint8_t>(query.action));
  if (query.action == GroupAction::kGoOn)
    return encode_entries(writer, query.entries);
  if (query.action != GroupAction::kOpen)
    return;
  writer.u8(query.device);
  writer.varint(query.rank);
  writer.varint(query.size);
  writer.varint(query.timeout);
  writer.text(query.address);
}

GroupQuery decode_group_query(Reader& reader) {
  GroupQuery query;
  query.group = reader.varint();
  const uint8_t action = reader.u8();
  if (action > static_cast<uint8_t>(GroupAction::kClose))
    throw ProtocolError("no action " + std::to_string(action) + " of a process group");
  query.action = static_cast<GroupAction>(action);
  if (query.action == GroupAction::kOpen)
    decode_rank(reader, query);
  if (query.action == GroupAction::kGoOn)
    query.entries = decode_entries(reader);
  return query;
}

void encode(Writer& writer, const GroupAnswer& answer) {
  writer.u8(answer.is_open ? 1 : 0);
  encode_entries(writer, answer.entries);
  writer.varint(answer.missing.size());
  for (const std::string& key : answer.missing)
    writer.text(key);
}

GroupAnswer decode_group_answer(Reader& reader) {
  GroupAnswer answer;
  const uint8_t is_open = reader.u8();
  if (is_open > 1)
    throw ProtocolError("a flag of a process group is " + std::to_string(is_open));
  answer.is_open = is_open == 1;
  answer.entries = decode_entries(reader);
  for (uint64_t n = reader.count(kMaxGroupEntries, "keys of a process group"); n > 0; --n)
    answer.missing.push_back(decode_key(reader));
  return answer;
}

}  // namespace torch_remote::wire
