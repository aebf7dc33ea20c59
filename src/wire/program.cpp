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
  for (const ChangedStorage& each : run.changed) {
    writer.varint(each.number);
    writer.varint(each.name);
  }
}

Run decode_run(Reader& reader) {
  Run run;
  run.program = reader.name();
  const uint64_t changed = reader.count(kMaxProgramStorages, "changed storages of a run");
  for (uint64_t i = 0; i < changed; ++i) {
    const uint64_t number = reader.varint();
    run.changed.push_back({number, reader.name()});
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
