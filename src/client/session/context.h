#pragma once

#include <cstdint>

#include "marshal/context.h"
#include "wire/codec.h"

namespace torch_remote::client {

using marshal::ContextValues;

// What a server was last told of the context. Externally synchronised: by the submit lock.
class ContextMirror {
 public:
  // Appends a CONTEXT message with the settings that differ from those told; nothing when none does, in about
  // 20 ns.
  void append_changes(wire::Writer& writer) {
    if (seen_.update())
      append_difference(writer);
  }

 private:
  void append_difference(wire::Writer& writer);

  marshal::ContextFingerprint seen_;
  ContextValues told_{};
  bool has_told_ = false;
};

// What of the context decides metadata: default dtype, deterministic, fill. Part of every key.
uint8_t read_environment();
constexpr uint8_t kGradModeBit = 128;  // set for operators that look at it (wire/signature.h)

}  // namespace torch_remote::client
