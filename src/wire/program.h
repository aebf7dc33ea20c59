#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wire/codec.h"
#include "wire/limits.h"
#include "wire/messages.h"
#include "wire/slots.h"

namespace torch_remote::wire {

// Note [Programs]
//
// A program is a straight-line list of calls. The client sends it once, and has it run as often as
// it likes with one message each time.
//
//   PROGRAM program:varint n:varint storage*n m:varint step*m
//   RUN     program:varint n:varint changed*n
//   DROP    program:varint
//   storage := name:varint                     of the client's
//            | 0:varint device:u8 nbytes:varint  a temporary
//   changed := (zigzag(number - previous) << 1 | is_shifted):varint zigzag(name - previous)
//              [shift:zigzag]                    `previous`: of the changed one before, 0 at first
//   step    := 0:varint settings                 as in CONTEXT
//            | (index + 1):varint slots          a call
//
// A program numbers its storages from 0, in the order of the list. In its slots the numbers stand
// where a CALL has names (Note [Slots]); the differences start at 0. A step makes no storage but by
// its fresh outputs, each of which is a storage that no earlier step mentions. A temporary exists
// only while the program runs; the other storages are the client's, by name. RUN can give numbers
// to other storages, which then stay. When a RUN comes its storages exist, but for fresh outputs,
// which it makes. A shift, in bytes, is added to the place where each view of the storage begins.
//
// A RUN has one number, like a call (Note [Numbers of calls]). Its steps run in order, on the
// current streams, each checked as an eager call is. It starts with the settings that were current
// when the program was recorded, and leaves those that it found. The step that fails ends the run:
// what steps before it wrote stays, and the storages that fresh outputs of any step have are
// missing. The error says which step it was. If a stopped thread's RUN is discarded, they are too.
//
// Only to servers with kProgramsCapability.
struct ProgramStorage {
  uint64_t name = 0;    // 0: a temporary
  uint8_t device = 0;   // of a temporary
  uint64_t nbytes = 0;  // of a temporary
};

// Of PROGRAM. `write_steps(names)` appends every step by encode_step().
template <typename WriteSteps>
void encode_program(Writer& writer, uint64_t program, std::span<const ProgramStorage> storages,
                    uint64_t steps, WriteSteps&& write_steps) {
  const Message framed(writer, Tag::kProgram);
  writer.varint(program);
  writer.varint(storages.size());
  for (const ProgramStorage& storage : storages) {
    writer.varint(storage.name);
    if (storage.name != 0)
      continue;
    writer.u8(storage.device);
    writer.varint(storage.nbytes);
  }
  writer.varint(steps);
  NameState names;
  write_steps(names);
}

inline void encode_step(Writer& writer, const Context& settings) {
  writer.varint(0);
  encode_settings(writer, settings);
}

// `write_slots()` appends the slots and the numbers of the fresh outputs.
template <typename WriteSlots>
void encode_step(Writer& writer, uint32_t slot, WriteSlots&& write_slots) {
  writer.varint(uint64_t{slot} + 1);
  write_slots();
}

// What precedes the steps.
struct ProgramHead {
  uint64_t program = 0;
  std::vector<ProgramStorage> storages;
  uint64_t steps = 0;
};

ProgramHead decode_program_head(Reader& reader);
// A step's first number: 0, then settings follow (decode_context()), or the signature's index + 1.
uint64_t decode_step(Reader& reader);

// From then on the program's storage with this number is the client's storage with this name.
struct ChangedStorage {
  uint64_t number = 0;
  uint64_t name = 0;
  int64_t shift = 0;  // in bytes, of all views of it
};

struct Run {
  uint64_t program = 0;
  std::vector<ChangedStorage> changed;
};

void encode(Writer& writer, const Run& run);
Run decode_run(Reader& reader);

void encode_drop(Writer& writer, uint64_t program);
uint64_t decode_drop(Reader& reader);

}  // namespace torch_remote::wire
