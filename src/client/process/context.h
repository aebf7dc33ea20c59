#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "client/process/threads.h"
#include "marshal/context.h"
#include "wire/codec.h"

namespace torch_remote::client {

using marshal::ContextValues;

// Note [Settings of a backward]
//
// The number of threads and the treatment of denormals are settings of a thread. A local backward
// on a CPU runs in the thread that called it. Here autograd's threads make the calls, with settings
// of their own, so the server is told the caller's: threads.h. If nobody knows the caller, the
// server keeps what it was last told.

// The context that the server was last told. Externally synchronised: by the submit lock.
class ContextMirror {
 public:
  // The settings that have changed since the last call; null if none has. Takes 20 ns then.
  const wire::Context* changes() {
    if (const auto known = current_settings()) [[likely]]
      thread_ = *known;
    else if (thread_.threads == 0)
      thread_ = marshal::read_thread_settings();
    return seen_.update(thread_) ? find_changes() : nullptr;
  }

  // Appends a CONTEXT message with them.
  void append_changes(wire::Writer& writer) {
    if (const wire::Context* const changed = changes()) [[unlikely]]
      encode(writer, *changed);
  }

 private:
  const wire::Context* find_changes();

  marshal::ThreadSettings thread_;  // for the calls that follow
  marshal::ContextFingerprint seen_;
  ContextValues sent_{};
  bool has_sent_ = false;
  wire::Context changed_;
};

// All settings as they are now for this thread's calls. Takes about 100 ns.
ContextValues current_context();

// The settings that decide metadata: default dtype, deterministic, fill. Part of every key.
uint8_t read_environment();
constexpr uint8_t kGradModeBit = 128;  // set for operators with kLooksAtGradMode

// Settings that change results, by name. For tests and debugging.
using NamedSettings = std::map<std::string, int64_t>;
NamedSettings named_settings(const wire::Context& context);
// Those of this process. A server's are equal after every call.
NamedSettings own_settings();

}  // namespace torch_remote::client
