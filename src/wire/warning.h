#pragma once

#include <cstdint>
#include <string>

#include "wire/codec.h"

namespace torch_remote::wire {

// WARNING: a kernel warns of something while a call runs. A server sends it only to a client that
// has kWarningsCapability, before it answers what comes after the call.
//
//   warning := call:varint program:varint step:varint text:varint [category:u8 text:text]
//
// Texts are numbered from 1. A text comes with the first warning that has it, whose number is the
// next new one; later warnings with the same category and text have its number alone.
enum class WarningCategory : uint8_t { kUser = 0, kDeprecation = 1 };

struct Warning {
  uint64_t call = 0;     // Note [Numbers of calls]; 0: before the first
  uint64_t program = 0;  // not 0: `call` is a RUN of it
  uint64_t step = 0;     // which of its steps warns, from 0
  uint64_t number = 0;   // of the text
  bool is_new = false;   // category and text follow
  WarningCategory category = WarningCategory::kUser;
  std::string text{};  // for people; longer ones are cut by the sender
};

void encode(Writer& writer, const Warning& warning);
Warning decode_warning(Reader& reader);

}  // namespace torch_remote::wire
