#pragma once

#include <cstdint>

#include "marshal/context.h"
#include "wire/codec.h"

namespace torch_remote::client {

using marshal::ContextValues;

// The context that the server was last told. Externally synchronised: by the submit lock.
class ContextMirror {
 public:
  // Appends a CONTEXT message with the settings that have changed. Takes 20 ns if none has.
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

// The settings that decide metadata: default dtype, deterministic, fill. Part of every key.
uint8_t read_environment();
constexpr uint8_t kGradModeBit = 128;  // set for operators with kLooksAtGradMode

}  // namespace torch_remote::client
