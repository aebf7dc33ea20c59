#include "wire/program.h"

#include "base/error.h"

namespace torch_remote::wire {
namespace {

ProgramStorage decode_storage(Reader& reader) {
  ProgramStorage storage;
  storage.name = reader.varint();
  if (storage.name != 0)
    return storage;
  storage.device = reader.u8();
  if (storage.device >= kMaxDevices)
    throw ProtocolError("no such device");
  storage.nbytes = reader.count(kMaxStorageBytes, "bytes of a storage");
  return storage;
}

}  // namespace

ProgramHead decode_program_head(Reader& reader) {
  ProgramHead head;
  head.program = reader.name();
  const uint64_t storages = reader.count(kMaxProgramStorages, "storages of a program");
  for (uint64_t i = 0; i < storages; ++i)
    head.storages.push_back(decode_storage(reader));
  head.steps = reader.count(kMaxProgramSteps, "steps of a program");
  return head;
}

uint64_t decode_step(Reader& reader) {
  return reader.varint();
}

void encode(Writer& writer, const Run& run) {
  const Message framed(writer, Tag::kRun);
  writer.varint(run.program);
  writer.varint(run.changed.size());
  uint64_t number = 0;
  NameState names;
  for (const ChangedStorage& each : run.changed) {
    const uint64_t step = to_zigzag(static_cast<int64_t>(each.number - number));
    writer.varint(step << 1 | (each.shift != 0 ? 1 : 0));
    encode_name(writer, names, each.name);
    if (each.shift != 0)
      writer.zigzag(each.shift);
    number = each.number;
  }
}

Run decode_run(Reader& reader) {
  Run run;
  run.program = reader.name();
  const uint64_t changed = reader.count(kMaxProgramStorages, "changed storages of a run");
  uint64_t number = 0;
  NameState names;
  for (uint64_t i = 0; i < changed; ++i) {
    const uint64_t code = reader.varint();
    number += static_cast<uint64_t>(from_zigzag(code >> 1));
    const uint64_t name = decode_name(reader, names);
    if (name == 0)
      throw ProtocolError("name 0 is never valid");
    run.changed.push_back({number, name, (code & 1) != 0 ? reader.zigzag() : 0});
  }
  return run;
}

void encode_drop(Writer& writer, uint64_t program) {
  const Message framed(writer, Tag::kDrop);
  writer.varint(program);
}

uint64_t decode_drop(Reader& reader) {
  return reader.name();
}

}  // namespace torch_remote::wire
